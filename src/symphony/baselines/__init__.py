"""Policies that decide without learning."""
