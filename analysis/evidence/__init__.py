"""What a prediction rests on: targets, methods that give signed evidence, and measures of how far to trust them."""
