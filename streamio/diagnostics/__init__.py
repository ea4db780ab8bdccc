"""Answers to: is this set whole?"""
