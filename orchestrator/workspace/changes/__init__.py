"""What changed in a copy: listed, kept, shown as a patch."""
