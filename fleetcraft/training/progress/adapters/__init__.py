"""Progress from frameworks: a few lines each, none imported unless used."""
