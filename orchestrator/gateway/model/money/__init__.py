"""What models cost, and what of them was used."""
