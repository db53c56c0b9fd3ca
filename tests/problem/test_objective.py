"""Weights of objectives, as users write them."""

from __future__ import annotations

import pytest

from symphony.problem.errors import InputError
from symphony.problem.objective import MEAN_ONLY, ObjectiveWeights, objective_weights


def test_a_name_a_text_and_a_mapping_give_weights_that_sum_to_one() -> None:
    assert objective_weights("tail") == ObjectiveWeights(tail=1.0)
    assert objective_weights("mean=1, tail=3") == ObjectiveWeights(mean=0.25, tail=0.75)
    assert objective_weights({"makespan": 2, "fairness": 2}) == ObjectiveWeights(makespan=0.5, fairness=0.5)
    assert objective_weights(MEAN_ONLY) == MEAN_ONLY


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("speed", "unknown objective 'speed'"),
        ("mean=fast", "the weight of mean is 'fast'"),
        ("mean=-1", "0 or more"),
        ("mean=inf", "0 or more"),
        ("mean=0,tail=0", "are 0"),
        ("mean=1,mean=2", "given twice"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(wrong: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        objective_weights(wrong)
    assert "mean=1,tail=0.5" in str(error.value.hint)
