package state

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"lockstep/events"
)

const (
	givenPrefix = "given:"
	maxEarlier  = 4 // commits; each app of each ref has its own, and each sync reads them all

	// What a delivery has for the name of its tree if that is not certain.
	mayHaveMissed = "-" // the app may have received nothing
	mayHaveMore   = "~" // the app may have received more since, only the commit that follows if that is not empty
	elsewhere     = "." // the app has received the tree in the cell from which the repository came
)

func givenField(app string, ref events.Ref) string { return givenPrefix + ref.String() + ":" + app }

// delivery is the value of a field with givenPrefix.
type delivery struct {
	commit  string
	tree    string   // its name
	earlier []string // commits delivered before, newest first
}

func parseDelivery(value string) delivery {
	parts := append(strings.Fields(value), "", "")
	return delivery{parts[0], cmp.Or(parts[1], mayHaveMissed), parts[min(2, len(parts)-2) : len(parts)-2]}
}

func (d delivery) String() string {
	return strings.Join(append([]string{d.commit, d.tree}, d.earlier...), " ")
}

func (r Repo) delivery(app string, ref events.Ref) delivery {
	return parseDelivery(r.fields[givenField(app, ref)])
}

// Given returns the commit of ref last delivered to app, or "". The app may read it.
func (r Repo) Given(app string, ref events.Ref) string { return r.delivery(app, ref).commit }

// Earlier returns commits of ref that were delivered to app before [Repo.Given], the newest first.
func (r Repo) Earlier(app string, ref events.Ref) []string { return r.delivery(app, ref).earlier }

// IsGiven reports whether app has received a tree of ref, and no other one since, as far as the state knows. The name
// of a tree has the fence of its publication, so it never returns, even if its commit does.
func (r Repo) IsGiven(app string, ref events.Ref, tree string) bool {
	return r.delivery(app, ref).tree == tree
}

// Received returns the commit of ref that app has received for certain, or "", where commit is published for ref with
// tree, or "", in place of the tree former. If uncertain, app may have received others after it: only since, or "" or "~" if
// there may be several. Each tree is delivered in the step that settles its publication, but that of the published one
// is not in the state, because the worker died before, or because Redis has returned with older data. If that has not
// even the former one, it lacks any number of them.
func (r Repo) Received(app string, ref events.Ref, commit, tree, former string) (base, since string, uncertain bool) {
	d := r.delivery(app, ref)
	since, more := strings.CutPrefix(d.tree, mayHaveMore)
	switch {
	case d.commit == "", d.tree == mayHaveMissed:
		return "", "", false
	case more && r.isDelivered(ref, tree):
		return d.commit, cmp.Or(since, mayHaveMore), true
	case more: // several, also if nothing is published any more
		return d.commit, mayHaveMore, true
	case !r.isDelivered(ref, tree):
		return d.commit, r.onlySince(ref, commit, former), true
	}
	return d.commit, "", false
}

// onlySince returns the commit of a published tree that was delivered to nobody, or "" if the former one was not either.
func (r Repo) onlySince(ref events.Ref, commit, former string) string {
	if former != "" && !r.isDelivered(ref, former) {
		return ""
	}
	return commit
}

// isDelivered reports whether an app was given a tree of ref, or in another cell the last one if tree is "".
func (r Repo) isDelivered(ref events.Ref, tree string) bool {
	tree = cmp.Or(tree, elsewhere)
	for name, value := range r.fields {
		if strings.HasPrefix(name, givenField("", ref)) && parseDelivery(value).tree == tree {
			return true
		}
	}
	return false
}

// UncertainFields returns the fields to set before a tree is delivered to one app, if that published for ref before was
// not: then the other apps may have received it.
func (r Repo) UncertainFields(ref events.Ref, commit, tree, former string) map[string]string {
	fields := map[string]string{}
	if r.isDelivered(ref, tree) {
		return fields
	}
	for name, value := range r.fields {
		d := parseDelivery(value)
		if !strings.HasPrefix(name, givenField("", ref)) || d.tree == mayHaveMissed {
			continue
		}
		if strings.HasPrefix(d.tree, mayHaveMore) {
			d.tree = mayHaveMore
		} else {
			d.tree = mayHaveMore + r.onlySince(ref, commit, former)
		}
		fields[name] = d.String()
	}
	return fields
}

// Repeat changes exported fields so that all refs are given again, whole, as apps may have missed the last results.
// What they may read stays as it is.
func Repeat(fields map[string]string) {
	for name, value := range fields {
		if d := parseDelivery(value); strings.HasPrefix(name, givenPrefix) {
			d.tree = mayHaveMissed
			fields[name] = d.String()
		}
	}
}

// Republish changes the fields of a repository that has moved: apps that were given a commit have the tree that is
// published for it at the new place.
func Republish(fields map[string]string, commits, trees map[events.Ref]string) {
	for name, value := range fields {
		parts, d := strings.Split(name, ":"), parseDelivery(value) // a ref contains no colon
		if parts[0]+":" != givenPrefix || strings.ContainsAny(d.tree[:1], mayHaveMissed+mayHaveMore) {
			continue
		}
		if ref, err := events.ParseRef(parts[1]); err == nil && d.commit == commits[ref] {
			d.tree = trees[ref]
			fields[name] = d.String()
		}
	}
}

// delivered returns the field to set once the tree of a synced result is delivered to its app.
func (r Repo) delivered(result events.Result) map[string]string {
	d := r.delivery(result.App, result.Ref)
	if d.commit != "" && d.commit != result.After {
		d.earlier = slices.DeleteFunc(d.earlier, func(c string) bool { return c == d.commit || c == result.After })
		d.earlier = slices.Insert(d.earlier, 0, d.commit)
		d.earlier = d.earlier[:min(len(d.earlier), maxEarlier)]
	}
	d.commit, d.tree = result.After, path.Base(result.Tree)
	return map[string]string{givenField(result.App, result.Ref): d.String()}
}

// GivenFields returns the fields to remove so that nothing of ref was delivered to app.
func (r Repo) GivenFields(app string, ref events.Ref) []string {
	if name := givenField(app, ref); r.fields[name] != "" {
		return []string{name}
	}
	return nil
}
