"""Families that come with the package."""
