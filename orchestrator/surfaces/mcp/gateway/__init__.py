"""`orchestrator gateway`: four tools that lead agents outside to our servers of tools."""
