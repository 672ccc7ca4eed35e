import tacit
from tacit.graph import Graph
from tacit.methods import Method

QUICK = {"epochs": 4, "steps": 6}


def fitted(method: str, unit: tacit.privacy.Unit, graph: Graph, **options: object) -> Method:
    overrides = {**QUICK, **options.pop("overrides", {})}
    make = tacit.methods.METHODS[method]
    model = make(unit, 4.0, 1e-5, overrides=overrides, **options)
    return model.fit(graph)
