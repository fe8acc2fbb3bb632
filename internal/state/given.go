package state

import (
	"slices"
	"strings"

	"lockstep/events"
)

const (
	givenPrefix     = "given:"
	earlierPrefix   = "given_earlier:"
	repeatPrefix    = "repeat:"
	nothingReceived = "none" // value of a field with repeatPrefix
)

func givenField(app string, ref events.Ref) string { return givenPrefix + ref.String() + ":" + app }
func earlierField(app string, ref events.Ref) string {
	return earlierPrefix + ref.String() + ":" + app
}
func repeatField(app string, ref events.Ref) string { return repeatPrefix + ref.String() + ":" + app }

// Given returns the commit of ref last delivered to app, or "". The app may read it.
func (r Repo) Given(app string, ref events.Ref) string {
	return r.fields[givenField(app, ref)]
}

// maxEarlier is the number of commits that [Repo.Earlier] returns at most.
const maxEarlier = 4 // each app of each ref has its own, and each sync reads them all

// Earlier returns commits of ref that were delivered to app before [Repo.Given], the newest first.
func (r Repo) Earlier(app string, ref events.Ref) []string {
	return strings.Fields(r.fields[earlierField(app, ref)])
}

// delivered returns the fields to set once the commit of a synced result is delivered to its app, and those to remove.
func (r Repo) delivered(result events.Result) (set map[string]string, drop []string) {
	set = map[string]string{givenField(result.App, result.Ref): result.After}
	drop = r.present(repeatField(result.App, result.Ref))
	given := r.Given(result.App, result.Ref)
	if given == "" || given == result.After {
		return set, drop
	}
	earlier := slices.DeleteFunc(r.Earlier(result.App, result.Ref), func(commit string) bool {
		return commit == given || commit == result.After
	})
	earlier = slices.Insert(earlier, 0, given)
	set[earlierField(result.App, result.Ref)] = strings.Join(earlier[:min(len(earlier), maxEarlier)], " ")
	return set, drop
}

// Received returns the commit of ref that app has received for certain, or "": that of [Repo.Given], or an
// earlier one if Repeats.
func (r Repo) Received(app string, ref events.Ref) string {
	given := r.Given(app, ref)
	switch before := r.fields[repeatField(app, ref)]; {
	case given == "", before == nothingReceived:
		return ""
	case before != "":
		return before
	}
	return given
}

// Repeats reports whether app may have missed the last result of ref, so that the next sync must repeat it.
func (r Repo) Repeats(app string, ref events.Ref) bool { return r.fields[repeatField(app, ref)] != "" }

// GivenFields returns the fields to remove so that nothing of ref was delivered to app.
func (r Repo) GivenFields(app string, ref events.Ref) []string {
	return r.present(givenField(app, ref), earlierField(app, ref), repeatField(app, ref))
}

func (r Repo) present(names ...string) (present []string) {
	for _, name := range names {
		if r.fields[name] != "" {
			present = append(present, name)
		}
	}
	return present
}
