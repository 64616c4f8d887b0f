"""The dashboard's button that leads to the identity provider, in a real browser, with a real provider (npm's oidc-provider)."""
import pytest
from test_oidc import setup  # noqa: F401  (a fixture)
from test_web import browse, packages


def test_a_person_signs_in_by_the_button_and_is_back_where_he_was(setup):  # noqa: F811
    missing = packages()
    if missing:
        pytest.skip(missing)
    cloud, _, _ = setup
    browse(cloud, "web-oidc")
    people = {u["name"]: u for u in cloud.json("user", "list")}
    assert (people["ann"]["team"], people["ann"]["oidc"]) == ("vision", True)
