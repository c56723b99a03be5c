"""Scenarios of chaos (S38): what a file may say, how mistakes are named, and what a seed draws."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from minikafka.chaos.compose import ComposeTarget
from minikafka.chaos.netns import NetnsTarget
from minikafka.chaos.outcome import REASONS, allowed_kinds
from minikafka.chaos.processes import ProcessTarget
from minikafka.chaos.reading import LIBRARY, ScenarioError, find, library, read, scenario_of
from minikafka.chaos.scenario import SHORT_SESSIONS, Hit, Span, Strike, hit_of, strikes_of
from minikafka.chaos.target import NO_MESSAGES, lacks
from minikafka.faults import CLIENT_END, FAULTS, MESSAGES, OTHER_NAMES, WHOM, Standing, View, links_of, nodes_of
from minikafka.types import NO_NODE, TopicPartition
from minikafka.world.faults import FaultSpec

HEAD = 'name = "mine"\nteaches = "something"\n'
STEP = '[[steps]]\nwhat = "kill"\nwhom = "one"\nat = "3s"\nfor = "2s"\n'
HELD = '[[steps]]\nwhat = "messages"\nkind = "hold"\nwhom = "client"\nto = "n1"\napi = "Fetch"\nat = "3s"\n'


def scenario(text: str, head: str = HEAD):
    return scenario_of(Path("mine.toml"), head + text)


def refusal(text: str, head: str = HEAD) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario(text, head)
    return str(caught.value)


def test_a_cluster_may_have_a_security_protocol_where_the_target_can():
    """Refused before anything is started; the names are those of LocalCluster."""
    secured = scenario('[cluster]\nsecurity-protocol = "SASL_SSL"\n' + STEP)
    assert secured.cluster.security_protocol == "SASL_SSL"
    for target in ("simulator", "processes", "compose"):
        assert lacks(target, secured) == (f"{target} cannot use SASL_SSL: only netns can",)
    assert "PLAINTEXT" in refusal('[cluster]\nsecurity-protocol = "TLS"\n' + STEP)


def test_faults_of_messages_are_for_processes_alone():
    """Packets and the simulator's plans do not know them: the other targets refuse the file before anything starts."""
    held = scenario(HELD)
    assert lacks("processes", held) == ()
    assert "cannot make messages: single messages are struck" in lacks("simulator", held)[0]
    assert NetnsTarget.lacks(MESSAGES) == ComposeTarget.lacks(MESSAGES) == NO_MESSAGES


# ---- the library -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", library(), ids=lambda path: path.stem)
def test_every_scenario_of_the_library_is_read_and_mapped(path):
    """Issue 7 Build 3: each file is whole; every seed gives strikes, and who would be hit exists in a healthy cluster."""
    read_back = read(path)
    nodes = tuple(range(1, read_back.cluster.brokers + 1))
    view = View(nodes, 2, {name: Standing(1, (1, 2, 3), (1, 2, 3)) for name in read_back.cluster.names()})
    for seed in range(3):
        strikes = strikes_of(read_back, seed)
        assert strikes
        assert [each.number for each in strikes] == list(range(1, len(strikes) + 1))
        assert all(hit_of(each, view) is not None for each in strikes)
    assert read_back.teaches[0].islower()
    assert not read_back.teaches.endswith(".")


def test_the_library_has_what_the_issue_asks_for():
    """Issue 7 Build 3: at least 15; partition cases, zombie leader, flapping follower, power, disks, clocks, restarts."""
    names = {path.stem for path in library()}
    assert len(names) >= 15
    assert sum(name.startswith("vanlightly-") for name in names) >= 4
    assert sum(name.startswith("boom-boom-") for name in names) >= 2
    used = {fault for path in library() for fault in read(path).faults()}
    assert used >= FAULTS.keys() - {"stop", "restart", MESSAGES}


def test_a_scenario_is_found_by_name_or_path(tmp_path):
    """The error for a wrong name lists the right ones."""
    assert find("kill-loop") == LIBRARY / "kill-loop.toml"
    with pytest.raises(ScenarioError, match=r"there is no scenario 'kil-loop'; did you mean kill-loop"):
        find("kil-loop")
    with pytest.raises(ScenarioError, match="no such file"):
        find(str(tmp_path / "mine.toml"))


# ---- what a file says ------------------------------------------------------------------------------------------------


def test_what_is_not_said_is_the_default():
    """A scenario of one step is a whole one."""
    told = scenario(STEP)
    assert told.cluster.brokers == 3
    assert told.cluster.settings == SHORT_SESSIONS
    assert [topic.name for topic in told.cluster.topics] == ["orders"]
    assert told.load.duration_s == 20.0
    assert [each.acks for each in told.load.producers] == ["all"]
    assert told.expect.loss == ()


@pytest.mark.parametrize(
    "text, told",
    [
        ('[[steps]]\nwhat = "kil"\nwhom = "one"\nat = "3s"\n', "mine.toml:4: steps[1].what: 'kil' is unknown; did you mean 'kill'?"),
        ('[[steps]]\nwhat = "latency"\nwhom = "one"\nat = "3s"\n', "mine.toml:4: steps[1].what: 'latency' is unknown; did you mean 'delay'?"),
        ('[[steps]]\nwhat = "kill"\nat = "3s"\n', "mine.toml:3: steps[1].whom: is missing: a text, or a list of texts is needed"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\n', "mine.toml:3: steps[1].at: is missing: say when"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\nat = 3\n', "mine.toml:6: steps[1].at: 3: a time with its unit, as '5s' or '2s..6s', is needed"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\nat = "3"\n', "mine.toml:6: steps[1].at: '3': a time with its unit (ms, s, m, h, d) is needed"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\nat = "5s..3s"\n', "mine.toml:6: steps[1].at: '5s..3s': the shorter time comes first"),
        (STEP + '\n[[steps]]\nwhat = "kill"\nwhom = "leadr:orders-0"\nat = "3s"\n', "mine.toml:11: steps[2].whom: 'leadr' is unknown; did you mean 'leader'?"),
        ('[[steps]]\nwhat = "kill"\nwhom = "leader:orders"\nat = "3s"\n', "mine.toml:5: steps[1].whom: 'leader:orders' names no partition"),
        ('[[steps]]\nwhat = "kill"\nwhom = "leader:orders-9"\nat = "3s"\n', "mine.toml:5: steps[1].whom: there is no partition orders-9"),
        ('[[steps]]\nwhat = "kill"\nwhom = "n4"\nat = "3s"\n', "mine.toml:5: steps[1].whom: n4: brokers are n1 to n3"),
        ('[[steps]]\nwhat = "kill"\nwhom = "client"\nat = "3s"\n', "mine.toml:5: steps[1].whom: 'client' is unknown"),
        ('[[steps]]\nwhat = "cut"\nwhom = "one"\nat = "3s"\n', "mine.toml:3: steps[1].to: is missing: cut needs it"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\nto = "n2"\nat = "3s"\n', "mine.toml:6: steps[1].to: belongs to cut, delay, loss, messages, not to kill: leave it out"),
        (HELD.replace('"hold"', '"holt"'), "mine.toml:5: steps[1].kind: 'holt' is unknown; did you mean 'hold'"),
        (HELD.replace("Fetch", "Fech"), "mine.toml:8: steps[1].api: api='Fech'"),
        (HELD + 'delay = "5ms"\n', "mine.toml:10: steps[1].delay: delay_ms belongs to kind 'delay' and 'reorder'"),
        (HELD.replace('kind = "hold"\n', ""), "mine.toml:3: steps[1].kind: is missing: messages needs it"),
        (HELD.replace('"messages"', '["messages", "kill"]'), "mine.toml:4: steps[1].what: messages takes fields"),
        (STEP + 'api = "Fetch"\n', "mine.toml:8: steps[1].api: belongs to messages, not to kill"),
        (STEP.replace('"one"', '"client"'), "mine.toml:5: steps[1].whom: 'client' is unknown"),
        ('[[steps]]\nwhat = "restart"\nwhom = "one"\nat = "3s"\nfor = "2s"\n', "mine.toml:7: steps[1].for: restart is over at once: leave it out"),
        ('[[steps]]\nwhat = "kill"\nwhom = "one"\nat = "30s"\n', "mine.toml: load.duration: the load lasts 20 s and the last step is over after 30 s"),
        (STEP + "colour = 3\n", "mine.toml:8: steps[1].colour: 'colour' is unknown"),
        ('[load]\nproducers = [{ topic = "ordres" }]\n' + STEP, "mine.toml:4: load.producers[1].topic: there is no topic 'ordres'"),
        ('[load]\nduration = "0s"\n' + STEP, "mine.toml:4: load.duration: 0 s: from 1s to 7d is possible"),
        ("[cluster]\nbrokers = 12\n" + STEP, "mine.toml:4: cluster.brokers: Expected `int` <= 9, not 12"),
        ('[cluster]\nbrokers = "3"\n' + STEP, "mine.toml:4: cluster.brokers: Expected `int`, got `str`"),
        ('[cluster]\nbrokers = 2\ntopics = [{ name = "t", replication-factor = 3 }]\n' + STEP, "mine.toml:5: cluster.topics[1].replication-factor: 3: there are 2 brokers"),
        ("[[cluster.topics]]\npartitions = 2\n" + STEP, "mine.toml:3: cluster.topics[1].name: is missing"),
        ("[cluster.settings]\nlog.segment.bytes = 1\n" + STEP, "mine.toml:3: cluster.settings: log is {'segment': {'bytes': 1}}: write the name in quotes"),
        ('[load]\nduratoin = "5s"\n' + STEP, "mine.toml:4: load.duratoin: 'duratoin' is unknown; did you mean 'duration'?"),
        ('[load]\nduration = "-5s"\n' + STEP, "mine.toml:4: load.duration: '-5s': a time here is not negative"),
        ('[[load.producers]]\nacks = "2"\n' + STEP, "mine.toml:4: load.producers[1].acks: '2' is unknown"),
        ("colour = 1\n" + STEP, "mine.toml:3: colour: 'colour' is unknown"),
        ("steps = [3]\n", "mine.toml:3: steps[1]: Expected `object`, got `int`"),
        (STEP.replace('"one"', "[]"), "mine.toml:5: steps[1].whom: is missing"),
        ('[cluster]\nsettings = { "log.segmnt.bytes" = "1" }\n' + STEP, "mine.toml:4: cluster.settings.log.segmnt.bytes: "),
        ('[expect]\nloss = "acks=1"\n' + STEP, "mine.toml:4: expect.loss: 'acks=1' needs a producer with acks = \"1\""),
        ('[expect]\nloss = "unflushed"\n' + STEP, "mine.toml:4: expect.loss: 'unflushed' needs a power-loss step"),
        ("[load]\nduration = \n", "mine.toml:4: this is no TOML"),
        ("", "mine.toml: steps: there is none"),
    ],
)  # fmt: skip
def test_a_mistake_names_file_line_field_and_fix(text, told):
    """Issue 7 Build 1: typed errors."""
    assert refusal(text).removeprefix("INVALID_CONFIG: ").startswith(told), refusal(text)


def test_the_name_is_the_files():
    """A library is looked up by file name: two names for one scenario would mislead."""
    assert "the file is called mine.toml, so the name is 'mine'" in refusal(STEP, 'name = "other"\nteaches = "x"\n')


def test_words_of_other_tools_lead_to_ours():
    """Pumba's, Toxiproxy's and Jepsen's users are told our word."""
    assert set(OTHER_NAMES.values()) <= FAULTS.keys()
    assert not OTHER_NAMES.keys() & FAULTS.keys()
    assert all(meaning for meaning in WHOM.values())


# ---- what a seed draws -----------------------------------------------------------------------------------------------


def test_a_seed_means_the_same_twice_and_another_one_something_else():
    """A run is repeated by its seed, on any target."""
    storm = read(find("storm"))
    assert strikes_of(storm, 7) == strikes_of(storm, 7)
    assert len({strikes_of(storm, seed) for seed in range(8)}) == 8
    assert all(whom not in str(each) for each in strikes_of(storm, 7) for whom in (" one", "majority"))


def test_the_seed_reaches_what_is_drawn_for_each_message():
    """Two seeds lose other messages, two strikes and two links of one strike as well."""
    lossy = scenario('[[steps]]\nwhat = "loss"\nwhom = "n1"\nto = "n2"\nshare = 0.1\nevery = "5s"\nfor = "2s"\n')
    one, other = ([each.seed for each in strikes_of(lossy, seed, 60.0)] for seed in (1, 2))
    assert len(set(one + other)) == len(one) + len(other) > 2
    strike = next(each for each in strikes_of(lossy, 1) if each.what == "loss")
    hit = Hit(strike=strike, nodes=(1,), links=((1, 2), (2, 1)))
    target = ProcessTarget.__new__(ProcessTarget)
    target._hits = {strike.number: hit}
    specs = [spec for node in (1, 2) for spec in target._links(node).values()]
    assert [spec["seed"] for spec in specs] == [strike.seed, strike.seed + 1]
    for spec in specs:
        FaultSpec(**spec)


def test_a_longer_run_only_adds_strikes():
    """`--duration` may not change what happened before."""
    storm = read(find("storm"))
    short, long = strikes_of(storm, 3, 30.0), strikes_of(storm, 3, 120.0)
    assert long[: len(short)] == short
    assert len(long) > len(short)
    assert max(each.at_s for each in long) < 120.0


@pytest.mark.parametrize("brokers, minority, majority", [(1, 1, 1), (3, 1, 2), (4, 1, 3), (5, 2, 3)])
def test_minority_and_majority_are_jepsens(brokers, minority, majority):
    """As many as may be lost; as few as leave no majority."""
    text = (
        f"[cluster]\nbrokers = {brokers}\n"
        '[[steps]]\nwhat = "kill"\nwhom = "minority"\nat = "1s"\n[[steps]]\nwhat = "kill"\nwhom = "majority"\nat = "2s"\n'
    )
    few, many = strikes_of(scenario(text), 1)
    assert len(few.whom.split(",")) == minority
    assert len(many.whom.split(",")) == majority


def test_a_span_is_drawn_within_its_ends():
    """`for = "1s..3s"`."""
    drawn = [Span(1.0, 3.0).draw(Random(seed)) for seed in range(50)]
    assert min(drawn) == pytest.approx(1.25, abs=0.25)
    assert 2.5 < max(drawn) <= 3.0
    assert Span(2.0, 2.0).draw(Random(1)) == 2.0


# ---- whom ------------------------------------------------------------------------------------------------------------

ORDERS = TopicPartition("orders", 0)
VIEW = View(
    (1, 2, 3),
    2,
    {ORDERS: Standing(3, (3, 1, 2), (3, 2)), TopicPartition("orders", 1): Standing(NO_NODE, (1, 2, 3), (1,))},
)


@pytest.mark.parametrize(
    "words, nodes",
    [
        ("n2", (2,)),
        ("n3,n1,n3", (3, 1)),
        ("all", (1, 2, 3)),
        ("controller", (2,)),
        ("primaries", (3,)),
        ("leader:orders-0", (3,)),
        ("follower:orders-0", (1,)),
        ("isr:orders-0", (3, 2)),
        ("leader:orders-1", ()),
        ("leader:other-0", ()),
    ],
)
def test_words_become_brokers_when_the_fault_happens(words, nodes):
    """Jepsen's words and roles, as things stand; who does not exist is nobody."""
    assert nodes_of(words, VIEW) == nodes


@pytest.mark.parametrize(
    "words, links",
    [
        ("n1>n2", ((1, 2),)),
        ("leader:orders-0>controller", ((3, 2),)),
        ("controller>controller", ()),
        ("leader:orders-0>others", ((3, 1), (3, 2))),
        ("others>n2", ((1, 2), (3, 2))),
        ("client>n1,n2", ((CLIENT_END, 1), (CLIENT_END, 2))),
        ("leader:orders-1>others", ()),
        ("all>all", ((1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2))),
    ],
)
def test_words_become_links(words, links):
    """One way each, never from a broker to itself."""
    assert links_of(words, VIEW) == links


def test_isolation_is_both_ways_and_with_clients_if_asked():
    """The group that is cut off together can still talk to each other."""
    strike = Strike(number=1, at_s=1.0, what="isolate", whom="n1,n2", to="others")
    hit = hit_of(strike, VIEW)
    assert hit == Hit(strike=strike, nodes=(1, 2), links=((1, 3), (2, 3), (3, 1), (3, 2)))
    with_clients = hit_of(Strike(number=1, at_s=1.0, what="isolate", whom="n1", to="others", clients=True), VIEW)
    assert with_clients is not None
    assert {(1, CLIENT_END), (CLIENT_END, 1)} <= set(with_clients.links)
    assert str(hit) == "isolate n1>n3, n2>n3, n3>n1, n3>n2"


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_no_reason_explains_replicas_that_differ():
    """Whatever the settings allow: replicas become equal."""
    for reason in REASONS:
        assert not {"diverged", "phantom-read", "aborted-read"} & allowed_kinds((reason,))
    assert allowed_kinds(()) == frozenset()
