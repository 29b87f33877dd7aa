"""What is measured of a set of texts: most give one value a text, so that intervals can be put on their mean."""
