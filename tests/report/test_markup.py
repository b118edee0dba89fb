import json

import pytest

from ampsweep.report.markup import Markup, join, json_in_script, name, tag


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = tag("p", "1 < 2 & 3", tag("b", '"x"'), title='a "quoted" <title>', data_arm="amp")
    assert made == (
        '<p title="a &quot;quoted&quot; &lt;title&gt;" data-arm="amp">1 &lt; 2 &amp; 3<b>&quot;x&quot;</b></p>'
    )
    assert join("a<b", Markup("<br>"), None) == "a&lt;b<br>"


def test_attributes_are_left_out_or_bare_by_their_value():
    assert tag("details", open=True, hidden=False, class_=None) == "<details open></details>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_name_is_isolated_from_what_stands_beside_it():
    assert name("שלום <b>") == "<bdi>שלום &lt;b&gt;</bdi>"


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "\u2028", "&lt;"])
def test_a_block_of_json_holds_any_text(text):
    content = json_in_script({"text": text})
    assert json.loads(content) == {"text": text}
    assert "<" not in content
