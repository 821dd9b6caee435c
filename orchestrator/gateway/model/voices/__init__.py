"""How a scripted model speaks: a voice for each format of the model APIs."""
