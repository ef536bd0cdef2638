"""Cases: what is asked (axes), what backends can do (capabilities), what came back (measurement)."""
