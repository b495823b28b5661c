"""Draws and states on disk, so that nothing is lost and a run can be resumed."""
