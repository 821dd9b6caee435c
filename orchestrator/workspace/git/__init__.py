"""Repositories of the workspace, made safe to hand out."""
