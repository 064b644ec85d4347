"""A user's own kernel rule on the demo traces, from the file in the home to the mart."""

from __future__ import annotations

from pipeline.ingest.demo import DEMO_RUN, DEMO_TRACES
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.lake.settings import Settings
from pipeline.models.build import build_run
from pipeline.models.rules import load_rules
from tests.support.builders import ingest_into

RULE = '[[rule]]\nid = "mine"\nname = "FlashAttnFwdSm90"\ncategory = "attention"\n'
FOUND = """
SELECT count(DISTINCT layer), count(role), sum(hash(activity_id, rank, layer, role, part)::HUGEINT)
FROM activity LEFT JOIN collectives USING (run_id, trace_id, activity_id, rank, layer, role)
"""


def test_a_one_line_rule_keeps_the_layers_and_roles_of_the_demo(home: Home) -> None:
    """Attention that the user files without a subcategory is still the attention of 61 layers, and the same
    activities have the same roles."""
    ingest_into(home, *sorted(DEMO_TRACES.glob("*.json.gz")), run=DEMO_RUN)
    ours = run_query(home, FOUND)[1]
    home.user_rules.write_text(RULE)
    build_run(home, DEMO_RUN, load_rules(home.user_rules, home.user_markers), Settings(1))
    claimed = "SELECT count(*), any_value(subcategory) FROM activity WHERE rule_id = 'mine'"
    assert run_query(home, claimed)[1] == [(610, "other")]
    assert run_query(home, FOUND)[1] == ours
    assert ours[0][:2] == (61, 7920)
