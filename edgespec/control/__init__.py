"""Deciding how much speculation pays, and which backend; nothing is imported here, because planning
does without compiled code.
"""
