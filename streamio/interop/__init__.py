"""Other loaders that read what streamio packs, or take what it reads. Each is imported by its user, never here."""
