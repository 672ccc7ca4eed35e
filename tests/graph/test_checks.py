import numpy as np
import pytest

from tacit.errors import GraphError
from tacit.graph import check_training


def test_passes_a_split_graph(small):
    assert check_training(small) is small


def test_refuses_no_training_nodes_an_empty_class_and_overlap(small):
    nobody = np.zeros(7, dtype=bool)
    with pytest.raises(GraphError, match=r"no training nodes.*tacit.graph.split"):
        check_training(small.with_(train=nobody))
    only_first = nobody.copy()
    only_first[0] = True
    with pytest.raises(GraphError, match=r"class 1 has no training node.*keep_classes"):
        check_training(small.with_(train=only_first))
    with pytest.raises(GraphError, match="class cats has no"):
        check_training(small.with_(train=only_first, class_names=("dogs", "cats")))
    with pytest.raises(GraphError, match="more than one of"):
        check_training(small.with_(val=small.train))
    with pytest.raises(GraphError, match="1 class"):
        check_training(small.with_(labels=np.minimum(small.labels, 0), classes=1))
