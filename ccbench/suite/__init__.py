"""Suites: a YAML file that asks one question, checked, and expanded into cases.

``model.load_suite`` reads, ``expansion.expand`` makes cases of it; ``documents`` reads every YAML file and
finds what ships. This package imports nothing: all layers above read documents, and few need pydantic.
"""
