"""Predictions on test data, averaged while sampling."""
