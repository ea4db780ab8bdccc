"""Databases: tables and queries as data sets."""
