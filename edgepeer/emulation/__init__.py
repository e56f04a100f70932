"""Watching a job and showing it; starting whole fleets as processes on one machine."""
