"""Whether this Python takes these files."""

import json
import sys

with open("/belljar/evolve/job.json", "rb") as file:
    job = json.load(file)
for name in job["changed"]:
    with open(f"{job['root']}/{name}", "rb") as file:
        try:
            compile(file.read(), name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            sys.exit(f"{name}: {error}")
print("valid")
