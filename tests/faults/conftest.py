#: Programs that tests start in processes of their own.
collect_ignore = ["campaign.py", "killed_run.py", "killed_selections.py", "selections.py"]
