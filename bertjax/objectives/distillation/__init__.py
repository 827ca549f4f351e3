"""Distillation from a teacher: outputs, hidden states, attention."""
