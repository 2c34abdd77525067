import pytest

#: Programs that tests start in processes of their own.
collect_ignore = ["ddp_script.py", "killed_script.py"]

#: What Lightning itself says when nobody did anything wrong here.
_LIGHTNING = (
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
    "ignore:.*does not have many workers.*",
    "ignore:The number of training batches.*",
    "ignore:GPU available but not used.*",
    "ignore:Checkpoint directory .* exists and is not empty.*",
    "ignore:.*the `log_every_n_steps` interval.*",
)

#: Most tests have budgets that are as small as can be.
_OURS = "ignore:.*take the whole budget.*"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "callbacks":
            for text in (*_LIGHTNING, _OURS):
                item.add_marker(pytest.mark.filterwarnings(text))
