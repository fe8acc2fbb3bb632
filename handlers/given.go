package handlers

import (
	"path"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// What an app was given last is compared with the published tree, by the tree's name. That has the fence of the
// publication, which the volume keeps, so it never returns. The state may be older than the volume, because Redis has
// returned with older data or a worker died before it settled. Then the published tree was delivered to nobody,
// as far as the state knows, and apps may have received it: see [state.Repo.Received].

// asDelivered returns a result with the tree that it delivers, and its ID. That names one content: of one entry, and so
// of one app and ref, and of one publication. It is the same when the entry is settled again.
func asDelivered(result events.Result, tree string) events.Result {
	result.Tree = tree
	result.ID += "/" + path.Base(tree)
	return result
}

// baseFor returns what the app of a change has received: nothing if another branch has become the default one. The
// nameless app reads the volume itself, so it has the published commit.
func baseFor(known state.Repo, change events.Change) func(events.Ref, volume.Publication) volume.Base {
	return func(ref events.Ref, published volume.Publication) volume.Base {
		switch {
		case change.Ref.IsZero() && known.Default() != "" && known.Default() != ref.String():
			return volume.Base{}
		case change.App == "" && known.Given("", ref) == "":
			return volume.Base{Commit: published.Commit}
		}
		base, since, uncertain := known.Received(change.App, ref, published.Commit, published.Tree, published.Former)
		return volume.Base{Commit: base, Since: since, Uncertain: uncertain}
	}
}
