"""One file for each layout a graph can arrive in. All end in ``tacit.graph.build.from_arcs``."""
