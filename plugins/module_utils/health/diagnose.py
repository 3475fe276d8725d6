# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds bad nodes and links among many by pair tests: `plan` says which pairs to test next. It runs nothing itself.

    state = start(["n1", "n2", ...], {"n1": ("spine-1", "leaf-1"), ...})
    while pairs := plan(state):
        record(state, [{"nodes": ["n1", "n2"], "value": 46.2, "error": ""}, ...])
    verdict(state)

The pairs of a round have no node in common, so they run side by side. Round 1 pairs near nodes. A pair that is slow or does not end makes
both suspects, and each is then tested with a node that has proven itself. A node is bad when no test with it was well and two proven
partners were slow with it. Two proven nodes that are slow together are tested again: slow twice is a link, slow once is undecided.
In a small fleet, or with several suspects, three partners must agree, because some may be flaky.
When all near pairs are well, a round crosses leaves.
"""

from __future__ import annotations

from statistics import median

SLOW = 0.85  # a pair below this part of what pairs of its kind reach is slow
MOST_ROUNDS = 8
LARGE = 64
NO_END = "no end within"  # the error of a test that hangs begins so
PROPOSAL = "Drain it with muster_diagnose: {drain: true}, then run muster-health --level full there."
FAR_PART = 0.8  # a pair across leaves reaches at least this part of a near one


class DiagnoseError(ValueError):
    """Something that cannot be diagnosed; the text is one sentence for the user."""


def start(nodes, places=None, *, floor=None, slow=SLOW, rounds=MOST_ROUNDS, across=True):
    """The state of a diagnosis. places: {node: (..., leaf)}, the network nodes above each. floor: what a pair must reach."""
    names = list(dict.fromkeys(nodes))
    if len(names) != len(list(nodes)):
        raise DiagnoseError("A node is named twice; name each node once.")
    if len(names) < 2:
        raise DiagnoseError("A pair needs two nodes and there is %d; name at least two idle nodes." % len(names))
    if not 0 < slow < 1:
        raise DiagnoseError("%r is no part of the usual bandwidth; give a number between 0 and 1." % slow)
    order = sorted(names, key=lambda name: tuple((places or {}).get(name, ())))
    return {
        "nodes": order,
        "places": {name: list((places or {}).get(name, ())) for name in order},
        "floor": floor,
        "slow": slow,
        "most_rounds": rounds,
        "across": across,
        "rounds": [],
        "asked": [],
    }


def leaf(state, node):
    """The network node next to a node; without topology, all nodes have one leaf."""
    return tuple(state["places"][node])


def kind(state, nodes):
    return "near" if leaf(state, nodes[0]) == leaf(state, nodes[1]) else "far"


def record(state, results):
    """Take the results of the pairs that `plan` gave. A pair without a result counts as one that did not end.

    A pair whose result has `skipped` was not tested, for example because somebody's job took a node: its nodes leave the diagnosis.
    One that has `unfinished` was not tested to its end, because the time of the whole diagnosis was over: it tells nothing.
    """
    given = {frozenset(each["nodes"]): each for each in results}
    asked = {frozenset(pair) for pair in state["asked"]}
    unknown = [nodes for nodes in given if nodes not in asked]
    if unknown:
        raise DiagnoseError("There is a result of %s, which nobody asked for." % " and ".join(sorted(unknown[0])))
    round_ = []
    skipped = {node for nodes, each in given.items() if each.get("skipped") for node in nodes}
    state["skipped"] = [*state.get("skipped", []), *sorted(skipped)]
    state["nodes"] = [node for node in state["nodes"] if node not in skipped]
    # What was measured with a node that has left no longer tells anything that a later round could confirm.
    state["rounds"] = [[test for test in tests if not skipped & set(test["nodes"])] for tests in state["rounds"]]
    for pair in state["asked"]:
        if skipped & set(pair):
            continue
        found = given.get(frozenset(pair), {"value": None, "error": "no result"})
        if found.get("unfinished"):
            continue
        round_.append({"nodes": list(pair), "value": found.get("value"), "error": found.get("error") or ""})
    state["rounds"].append(round_)
    state["asked"] = []


def tests_of(state):
    return [test for round_ in state["rounds"] for test in round_]


def usual(state):
    """{kind: value that pairs of this kind reach}. Slow pairs are few; when they are not, a floor says so."""
    values: dict = {"near": [], "far": []}
    members: dict = {"near": set(), "far": set()}
    apart = {"near": 0, "far": 0}
    for test in tests_of(state):
        if test["value"] is not None and not test["error"]:
            which = kind(state, test["nodes"])
            values[which].append(test["value"])
            apart[which] += not members[which] & set(test["nodes"])
            members[which] |= set(test["nodes"])
    everything = values["near"] + values["far"]
    near = upper(values["near"] or everything)
    far = upper(values["far"]) if state.get("crossed") else max(values["far"], default=None) if apart["far"] >= 3 else upper(everything)
    # Until a round crossed leaves, most far pairs are those of suspects, which must not become the measure.
    return {"near": near, "far": far if near is None or far is None else max(far, FAR_PART * near)}


def upper(values):
    """The median of the better half."""
    return median(sorted(values)[len(values) // 2 :]) if values else None


def judged(state):
    """[(test, whether it was well)] of all tests."""
    if state.get("judged", [0])[0] == len(state["rounds"]):
        return state["judged"][1]
    typical = usual(state)
    out: list = []
    for test in tests_of(state):
        well = test["value"] is not None and not test["error"]
        if well:
            most = typical[kind(state, test["nodes"])]
            well = (most is None or test["value"] >= state["slow"] * most) and (state["floor"] is None or test["value"] >= state["floor"])
        out.append((test, well))
    state["judged"] = [len(state["rounds"]), out]
    return out


def standing(state):
    """{node: {"good": partners, "slow": partners, "hung": partners}} so far."""
    out: dict = {node: {"good": [], "slow": [], "hung": []} for node in state["nodes"]}
    for test, well in judged(state):
        word = "good" if well else "hung" if test["error"].startswith(NO_END) else "slow"
        one, other = test["nodes"]
        out[one][word].append(other)
        out[other][word].append(one)
    return out


def sort_out(state):
    """{proven, bad: {node: proven partners}, waiting: suspects, again: pairs to test once more, links: pairs, in_question, doubtful}."""
    found = standing(state)
    proven = {node for node, had in found.items() if had["good"]}
    results: dict = {}
    for test, well in judged(state):
        if test["nodes"][0] in proven and test["nodes"][1] in proven:
            results.setdefault(tuple(sorted(test["nodes"])), []).append(well)
    wrong_pairs = {pair: wells for pair, wells in results.items() if False in wells}
    links = [pair for pair, wells in wrong_pairs.items() if len(wells) > 1 and True not in wells]
    in_question = {node for pair in wrong_pairs for node in pair}
    bad, waiting, blamed = {}, [], {}
    for node in state["nodes"]:
        wrong = found[node]["slow"] + found[node]["hung"]
        if wrong and node not in proven:
            blamed[node] = [other for other in dict.fromkeys(wrong) if other in proven and other not in in_question]
    enough = partners_needed(state, proven - in_question, blamed)
    for node, partners in blamed.items():
        # Partners behind one cable would blame the node for it.
        places = {leaf(state, other) for other in partners}
        if len(partners) >= enough and (leaf(state, node) in places or len(places) > 1):
            bad[node] = partners
        else:
            waiting.append(node)
    return {
        "proven": proven,
        "bad": bad,
        "waiting": waiting,
        "again": [pair for pair, wells in wrong_pairs.items() if len(wells) == 1],
        "links": links,
        "in_question": in_question,
        "doubtful": in_question - {node for pair in links for node in pair},
    }


def partners_needed(state, proven, blamed):
    """How many proven partners make a node bad: two for the only suspect of a large fleet, else three, because partners may be flaky."""
    alone = sum(len(partners) >= 2 for partners in blamed.values()) == 1 and all(len(partners) != 1 for partners in blamed.values())
    return 2 if alone and len(state["nodes"]) >= LARGE else max(2, min(3, len(proven)))


def matching(nodes, key):
    """Pairs inside one place, then of what is left over; and the last of an odd number."""
    pairs: list = []
    alone: list = []
    by_place: dict = {}
    for node in nodes:
        by_place.setdefault(key(node), []).append(node)
    for members in by_place.values():
        pairs += [(members[at], members[at + 1]) for at in range(0, len(members) - 1, 2)]
        alone += members[len(members) // 2 * 2 :]
    pairs += [(alone[at], alone[at + 1]) for at in range(0, len(alone) - 1, 2)]
    return pairs, alone[len(alone) // 2 * 2 :]


def across(state, nodes):
    """Pairs of nodes of different leaves, each time with the next leaf, so that one round meets many pairs of leaves."""
    free: dict = {}
    for node in nodes:
        free.setdefault(leaf(state, node), []).append(node)
    leaves = list(free)
    pairs: list = []
    for step in range(1, len(leaves)):
        before = len(pairs)
        for at, here in enumerate(leaves):
            there = leaves[(at + step) % len(leaves)]
            if free[here] and free[there] and here != there:
                pairs.append((free[here].pop(), free[there].pop()))
        if len(pairs) == before and sum(map(bool, free.values())) < 2:
            break
    return pairs


def retests(state, found):
    """Pairs of each suspect with a proven partner that it has not met, near ones first; and pairs to be tested again."""
    proven, waiting = found["proven"], found["waiting"]
    met: dict = {node: set() for node in state["nodes"]}
    for test in tests_of(state):
        one, other = test["nodes"]
        met[one].add(other)
        met[other].add(one)
    pairs: list = []
    used: set = set()
    for pair in [] if waiting else found["again"]:
        if not used & set(pair):
            pairs.append(pair)
            used |= set(pair)
    free: dict = {}
    spots = standing(state)
    # The sort is stable: who had no slow test at all comes first.
    for node in sorted(state["nodes"], key=lambda each: len(spots[each]["slow"] + spots[each]["hung"])):
        if node in proven and node not in used and node not in found["in_question"]:
            free.setdefault(leaf(state, node), []).append(node)
    alone = []
    for suspect in waiting + [node for node in state["nodes"] if not met[node]]:
        near = leaf(state, suspect)
        seen = {leaf(state, other) for other in met[suspect]}
        places = [place for place in [near, *sorted(free, key=seen.__contains__)] if free.get(place)]
        partner = next((node for place in places for node in free[place] if node not in met[suspect]), None)
        if partner is None:
            alone.append(suspect)
            continue
        free[leaf(state, partner)].remove(partner)
        if not free[leaf(state, partner)]:
            del free[leaf(state, partner)]
        pairs.append((suspect, partner))
    # Without a proven partner, the suspects change partners and may prove each other.
    while alone and not free:
        one = alone.pop(0)
        other = next((node for node in alone if node not in met[one]), None)
        if other is not None:
            alone.remove(other)
            pairs.append((one, other))
    return pairs


def plan(state):
    """The pairs of the next round, [] when nothing is left to find out or the budget of rounds is spent."""
    if state["asked"]:
        raise DiagnoseError("The last round has no results yet; record them before the next one.")
    done = len(state["rounds"])
    if done >= state["most_rounds"]:
        return []
    if not done:
        pairs, _alone = matching(state["nodes"], lambda node: leaf(state, node))
    else:
        found = sort_out(state)
        pairs = retests(state, found)
        if not pairs and wants_across(state, found):
            pairs = across(state, [node for node in state["nodes"] if node in found["proven"]])
            state.update(crossed=True, judged=[0])
    state["asked"] = [tuple(pair) for pair in pairs]
    return state["asked"]


def wants_across(state, found):
    """Whether pairs across leaves are still to be tested: once, when no node is bad and there are several leaves."""
    several = len({leaf(state, node) for node in state["nodes"]}) > 1
    return state["across"] and several and not state.get("crossed") and not found["bad"]


def verdict(state):
    """{bad: [{node, pairs, evidence, hung}], links: [{nodes, evidence}], undecided, untested, proven, usual, tests, rounds, pairs}.

    pairs: of each round its tests, {nodes, value, error, kind, well}.
    """
    out, found, typical = sort_out(state), standing(state), usual(state)
    values: dict = {}
    for test in tests_of(state):
        values.setdefault(frozenset(test["nodes"]), []).append(test)

    def said(one, other):
        return ["%s with %s" % (test["error"] or "%.4g" % test["value"], other) for test in values[frozenset((one, other))]]

    normal = typical["near"] or typical["far"] or 0
    wells = iter(judged(state))
    pairs = [[{**test, "kind": kind(state, test["nodes"]), "well": next(wells)[1]} for test in round_] for round_ in state["rounds"]]
    return {
        "bad": [
            {
                "node": node,
                "pairs": others,
                "evidence": "%s, where %.4g is usual" % ("; ".join(text for other in others for text in said(node, other)), normal),
                "hung": all(other in found[node]["hung"] for other in others),
            }
            for node, others in out["bad"].items()
        ],
        "links": [{"nodes": list(pair), "evidence": "; ".join(said(*pair))} for pair in out["links"]],
        "undecided": [node for node in state["nodes"] if node in out["waiting"] or node in out["doubtful"]],
        "untested": [node for node in state["nodes"] if not any(found[node].values())],
        "proven": [node for node in state["nodes"] if node in out["proven"] and node not in out["in_question"]],
        "usual": typical,
        "tests": len(tests_of(state)),
        "rounds": len(state["rounds"]),
        "skipped": state.get("skipped", []),
        "pairs": pairs,
    }


def bad_words(each):
    """Why a node is bad."""
    return "%s is bad%s: %s" % (each["node"], " (it hangs)" if each.get("hung") else "", each["evidence"])


def findings(found):
    """What makes a diagnosis fail: bad nodes, bad links, and what is undecided."""
    out = [bad_words(each) for each in found.get("bad", [])]
    out += ["the link between %s is bad: %s" % (" and ".join(each["nodes"]), each["evidence"]) for each in found.get("links", [])]
    return out + (["undecided: %s" % ", ".join(found["undecided"])] if found.get("undecided") else [])


def remarks(found):
    """What else a person wants to know of a diagnosis."""
    out = ["not tested: %s" % ", ".join(found["untested"])] if found.get("untested") else []
    out += ["%s is left alone: %s" % item for item in sorted(found.get("left_alone", {}).items())]
    out += ["it stopped early: %s" % found["stopped"]] if found.get("stopped") else []
    if found.get("rehearsed"):
        out.append("stand-ins of a rehearsal (%s) printed the outputs, so nothing was measured" % ", ".join(found["rehearsed"]))
    return out


def spent(found):
    """How many nodes are well, and what it cost to find out."""
    words = "%d nodes are well, by %d tests of pairs in %d rounds" % (len(found["proven"]), found["tests"], found["rounds"])
    return words + (" of %s" % found["size"] if found.get("size") else "")


def lines(found):
    """What a person wants to know of a diagnosis, one line each."""
    return findings(found) + ([spent(found)] if "tests" in found else []) + remarks(found)


def faults(found, drained=False):
    """The sentences that fail a diagnosis. A node of which too little is known does, too. drained: whether the bad nodes were drained."""
    out = []
    for each in found.get("bad", []):
        what = "It is drained; run muster-health --level full there." if drained else PROPOSAL
        out.append("%s. %s" % (bad_words(each), what))
    for each in found.get("links", []):
        message = "The link between %s is bad (%s), and each of them is well with others; report it to the provider of the network."
        out.append(message % (" and ".join(each["nodes"]), each["evidence"]))
    if found.get("undecided"):
        out.append("Undecided: %s; run diagnose.yml again, with more idle nodes." % ", ".join(found["undecided"]))
    if found.get("untested"):
        out.append("Not tested: %s; raise budget or rounds in muster_diagnose." % ", ".join(found["untested"]))
    if found.get("stopped"):
        out.append("The diagnosis stopped early, %s; raise budget in muster_diagnose." % found["stopped"])
    return out
