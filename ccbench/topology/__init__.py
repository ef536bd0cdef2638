"""Machines as graphs: devices, links with numbers, where each number came from."""
