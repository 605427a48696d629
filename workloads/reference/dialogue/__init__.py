"""Dialogues: clients that say any valid command about private objects, while a model predicts each answer."""
