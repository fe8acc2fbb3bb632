package intake

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/watch"
)

// maxChanges limits the changes of a delivery. A larger one is replaced by a poll of each watched repository.
const maxChanges = 1000

// A Plan is the effect of a delivery. At most one of Changes and Auto is not empty.
type Plan struct {
	Changes []events.Change
	Auto    []watch.Watch // to put into the registry first
	Ignored string        // why the delivery has no effect; one line

	Unwatched bool // it has none as nobody watches its repositories, whatever the ref
}

// concerned returns the URLs of the remotes whose watches determine the plan of a delivery.
func concerned(d forge.Delivery) []string {
	var urls []string
	for _, e := range d.Events {
		for _, url := range slices.Concat(e.URLs, e.FromURLs) {
			if !slices.Contains(urls, url) { // few: those of one repository
				urls = append(urls, url)
			}
		}
	}
	return urls
}

// NewPlan returns the plan of a delivery from src. remotes contains the watches of all [concerned] URLs by
// [watch.RemoteKey]. The plan is deterministic. Its changes have the paths of the watches, not the forge's.
func NewPlan(src forge.Source, d forge.Delivery, remotes map[string]watch.RemoteWatches) Plan {
	p := planner{src: src, delivery: d, remotes: remotes, index: map[target]int{}}
	p.ignore(d.Ignored)
	for _, e := range d.Events {
		p.event(e)
	}
	if p.overflow {
		p.pollAll()
	}
	switch {
	case len(p.plan.Auto) > 0:
		p.plan.Changes, p.plan.Ignored = nil, ""
	case len(p.plan.Changes) > 0:
		p.plan.Ignored = ""
	default:
		p.plan.Unwatched = len(d.Events) > 0 && len(p.watches(concerned(d))) == 0
	}
	return p.plan
}

type planner struct {
	src      forge.Source
	delivery forge.Delivery
	remotes  map[string]watch.RemoteWatches
	plan     Plan
	index    map[target]int // of plan.Changes
	overflow bool
}

// target identifies the effect of a change. A delivery has at most one change per target.
type target struct {
	change         events.ChangeType
	repo, app, ref string
}

func (p *planner) event(e forge.Event) {
	if e.Kind == forge.Moved {
		p.moved(e)
		return
	}
	watches := p.watches(e.URLs)
	if len(watches) == 0 {
		p.unwatched(e)
		return
	}
	before := len(p.plan.Changes)
	switch e.Kind {
	case forge.Pushed:
		p.pushed(e, watches)
	case forge.DefaultChanged, forge.Archived:
		for _, w := range watches {
			switch {
			case w.Ref.IsDefault():
				p.change(w, events.Ref{}, "", "")
			case w.Ref.Matches(e.Ref): // the plain name is published for it from now on
				p.change(w, e.Ref, "", "")
			}
		}
	case forge.RefDeleted:
		for _, w := range firstPerRepo(watches, func(w watch.Watch) bool { return w.Ref.Matches(e.Ref) }) {
			p.add(events.Change{
				Type: events.ChangeRemoved, Repo: w.Repo, URL: w.URL, Ref: e.Ref, Credential: w.Credential, Foreign: w.Auto,
				Before: e.Before,
			})
		}
	case forge.Removed:
		for _, w := range firstPerRepo(watches, anyWatch) {
			p.add(events.Change{Type: events.ChangeRemoved, Repo: w.Repo, URL: w.URL, Credential: w.Credential, Foreign: w.Auto})
		}
	}
	if len(p.plan.Changes) == before {
		p.ignore(fmt.Sprintf("nobody watches %s of %s", refName(e.Ref), e.Name()))
	}
}

// pushed adds a change for each watch that selects the ref. If the event names no ref, the repositories are polled.
func (p *planner) pushed(e forge.Event, watches []watch.Watch) {
	if e.Ref.IsZero() {
		p.poll(watches)
		return
	}
	for _, w := range watches {
		switch {
		case w.Ref.IsDefault():
			switch isDefault(e) {
			case yes:
				p.change(w, events.Ref{}, e.Before, e.After)
			case unknown:
				p.change(w, events.Ref{}, "", "")
			}
		case w.Ref.Matches(e.Ref):
			p.change(w, e.Ref, e.Before, e.After)
		}
	}
}

// unwatched adds an automatic watch for a push to an unwatched repository, if the source allows it.
func (p *planner) unwatched(e forge.Event) {
	if e.Kind != forge.Pushed || isDefault(e) == no || !slices.ContainsFunc(e.URLs, p.src.Auto.Allows) {
		p.ignore("nobody watches " + e.Name())
		return
	}
	w, err := watch.New(watch.Watch{
		App: p.src.Auto.App, Credential: p.src.Auto.Credential, Repo: e.Repo, Auto: true,
		URL: e.URLs[slices.IndexFunc(e.URLs, p.src.Auto.Allows)],
	})
	if err != nil {
		p.ignore(fmt.Sprintf("%s cannot be watched: %v", e.Name(), err))
		return
	}
	for _, other := range p.plan.Auto {
		if other.Key() == w.Key() {
			return
		}
	}
	p.plan.Auto = append(p.plan.Auto, w)
}

// watches returns the watches of the remote at any of the URLs, ordered by repository, app and ref.
func (p *planner) watches(urls []string) (found []watch.Watch) {
	for _, url := range urls {
		for _, w := range p.remotes[watch.RemoteKey(url)].Watches {
			if watch.SameRemote(w.URL, url) {
				found = append(found, w)
			}
		}
	}
	order := func(a, b watch.Watch) int {
		return cmp.Or(cmp.Compare(a.Repo.Key(), b.Repo.Key()), cmp.Compare(a.App, b.App), cmp.Compare(a.Ref.String(), b.Ref.String()))
	}
	slices.SortFunc(found, order)
	return slices.CompactFunc(found, func(a, b watch.Watch) bool { return order(a, b) == 0 })
}

// firstPerRepo returns the first matching watch of each repository.
func firstPerRepo(watches []watch.Watch, match func(watch.Watch) bool) (first []watch.Watch) {
	for _, w := range watches {
		if (len(first) == 0 || !first[len(first)-1].Repo.Equal(w.Repo)) && match(w) {
			first = append(first, w)
		}
	}
	return first
}

func anyWatch(watch.Watch) bool { return true }

// change adds a change that updates ref for a watch. That of an exact ref replaces one of a pattern; that of the
// default branch replaces nothing.
func (p *planner) change(w watch.Watch, ref events.Ref, before, after string) {
	exact, _ := w.Ref.Ref()
	p.set(target{events.ChangePushed, w.Repo.Key(), w.App, ref.String()}, exact == ref,
		func(id string) (events.Change, error) {
			c, err := w.Change(id, p.source(), ref, after)
			c.Foreign, c.Before = w.Auto, before
			return c, err
		})
}

func (p *planner) poll(watches []watch.Watch) {
	for _, w := range firstPerRepo(watches, anyWatch) {
		p.add(events.Change{Type: events.ChangeDue, Repo: w.Repo})
	}
}

func (p *planner) add(c events.Change) {
	p.set(target{c.Type, c.Repo.Key(), c.App, c.Ref.String()}, false, func(id string) (events.Change, error) {
		c.ID, c.Source = id, p.source()
		return events.NewChange(c)
	})
}

// set sets the change of a target, unless there is one that it may not replace, or there are too many.
func (p *planner) set(t target, replaces bool, change func(id string) (events.Change, error)) {
	i, exists := p.index[t]
	switch {
	case exists && !replaces:
		return
	case !exists && len(p.plan.Changes) == maxChanges:
		p.overflow = true
		return
	case !exists:
		i = len(p.plan.Changes)
	}
	c, err := change(p.id(i))
	if err != nil {
		p.ignore(err.Error())
		return
	}
	if !exists {
		p.index[t] = i
		p.plan.Changes = append(p.plan.Changes, events.Change{})
	}
	p.plan.Changes[i] = c
}

// pollAll replaces the changes, if there are too many, with a poll of each watched repository.
func (p *planner) pollAll() {
	p.plan.Changes, p.overflow = nil, false
	clear(p.index)
	p.poll(p.watches(concerned(p.delivery)))
}

// ignore records why an event causes no change. It keeps the first reason.
func (p *planner) ignore(why string) {
	if p.plan.Ignored == "" {
		p.plan.Ignored = why
	}
}

func (p *planner) source() string { return watch.HookSource + p.src.Name }

const maxID = 255 // bytes

// id returns the ID of the nth change. It is the same for every attempt to accept the delivery.
func (p *planner) id(n int) string {
	id := p.src.Name + "/" + p.delivery.ID + "/" + strconv.Itoa(n)
	if len(id) > maxID {
		sum := sha256.Sum256([]byte(p.delivery.ID))
		id = p.src.Name + "/" + hex.EncodeToString(sum[:]) + "/" + strconv.Itoa(n)
	}
	return id
}

func refName(ref events.Ref) string {
	if ref.IsZero() {
		return "the default branch"
	}
	return ref.String()
}
