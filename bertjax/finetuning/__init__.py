"""Tasks: labelled data, objectives, scorers and what is made of predictions, on the same loop."""
