"""Weights and configurations as Hugging Face's Olmo 3 has them, in and out."""
