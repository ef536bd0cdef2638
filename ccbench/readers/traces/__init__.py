"""Traces of jobs become communications: from files of any number of ranks to one Trace."""
