"""Which cases of a test `make test` has, and which `make test-all` only."""

import pytest


def briefly(cases, brief):
    """Returns the cases of a test, for `parametrize`: those that are not brief are thorough.

    Args:
      cases: list of values, of tuples of values, or of `pytest.param`.
      brief: a collection of first values, or a function of all values: whether a case is brief.
    """
    made = []
    for case in cases:
        is_param = hasattr(case, 'marks')
        values = case.values if is_param else case if isinstance(case, tuple) else (case,)
        is_brief = brief(*values) if callable(brief) else values[0] in brief
        marks = [*case.marks] if is_param else []
        made.append(pytest.param(*values, id=case.id if is_param else None,
                                 marks=marks if is_brief else [*marks, pytest.mark.thorough]))
    assert any(not each.marks for each in made)  # else `make test` would have none of them
    return made
