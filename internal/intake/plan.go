package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/watch"
)

// maxChanges is how many changes a delivery may come to. Of a larger one, each of the repositories watched is
// asked which refs have moved.
const maxChanges = 1000

// A Plan is what is to be done about a delivery. Of Changes and Auto at most one has anything.
type Plan struct {
	Changes []events.Change
	Auto    []watch.Watch // to be put into the registry first
	Ignored string        // why there is nothing to be done, one line
}

// Concerned are the URLs of the remotes whose watches decide what a delivery comes to.
func Concerned(d forge.Delivery) []string {
	var urls []string
	for _, e := range d.Events {
		for _, url := range [...]string{e.URL, e.FromURL} {
			if url != "" && !slices.Contains(urls, url) { // one, or two when it has moved
				urls = append(urls, url)
			}
		}
	}
	return urls
}

// NewPlan says what a delivery from src comes to when placed, by [watch.RemoteKey], is what is watched. The same delivery
// and the same watches make the same plan. A repository is known by its remote: the paths that the
// changes are for are those of the watches, whatever the forge calls it.
func NewPlan(src forge.Source, d forge.Delivery, placed map[string]watch.RemoteWatches) Plan {
	p := planner{src: src, delivery: d, placed: placed, at: map[asked]int{}}
	p.ignore(d.Ignored)
	for _, e := range d.Events {
		p.event(e)
	}
	if p.overflow {
		p.askAll()
	}
	switch {
	case len(p.plan.Auto) > 0:
		p.plan.Changes, p.plan.Ignored = nil, ""
	case len(p.plan.Changes) > 0:
		p.plan.Ignored = ""
	}
	return p.plan
}

// planner makes one plan.
type planner struct {
	src      forge.Source
	delivery forge.Delivery
	placed   map[string]watch.RemoteWatches
	plan     Plan
	at       map[asked]int // where in plan.Changes
	overflow bool
}

// asked is what one change of a delivery asks for; a second that asks for the same takes its place.
type asked struct {
	change         events.ChangeType
	repo, app, ref string
}

func (p *planner) event(e forge.Event) {
	if e.Kind == forge.Moved {
		p.moved(e)
		return
	}
	watches := p.watches(e.URL)
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
			if w.Ref.IsDefault() {
				p.change(w, events.Ref{}, "")
			}
		}
	case forge.RefDeleted:
		for _, w := range firsts(watches, func(w watch.Watch) bool { return w.Ref.Matches(e.Ref) }) {
			p.add(events.Change{Type: events.ChangeRemoved, Repo: w.Repo, URL: w.URL, Ref: e.Ref, Credential: w.Credential, Foreign: w.Auto})
		}
	case forge.Removed:
		for _, w := range firsts(watches, whichever) {
			p.add(events.Change{Type: events.ChangeRemoved, Repo: w.Repo, URL: w.URL, Credential: w.Credential, Foreign: w.Auto})
		}
	}
	if len(p.plan.Changes) == before {
		p.ignore(fmt.Sprintf("nobody watches %s of %s", cmpRef(e.Ref), e.Repo))
	}
}

// pushed brings what was pushed to each watch that selects it. Of a push that does not say to which refs,
// the remote is asked.
func (p *planner) pushed(e forge.Event, watches []watch.Watch) {
	if e.Ref.IsZero() {
		p.due(watches)
		return
	}
	for _, w := range watches {
		switch {
		case w.Ref.IsDefault():
			switch isDefault(e) {
			case yes:
				p.change(w, events.Ref{}, e.After)
			case unknown:
				p.change(w, events.Ref{}, "")
			}
		case w.Ref.Matches(e.Ref):
			p.change(w, e.Ref, e.After)
		}
	}
}

// unwatched has a repository watched that was pushed to, where the source says so.
func (p *planner) unwatched(e forge.Event) {
	if e.Kind != forge.Pushed || !p.src.Auto.Allows(e.URL) || isDefault(e) == no {
		p.ignore(fmt.Sprintf("nobody watches %s", e.Repo))
		return
	}
	w, err := watch.New(watch.Watch{App: p.src.Auto.App, Credential: p.src.Auto.Credential, Repo: e.Repo, URL: e.URL, Auto: true})
	if err != nil {
		p.ignore(fmt.Sprintf("%s cannot be watched: %v", e.Repo, err))
		return
	}
	for _, other := range p.plan.Auto {
		if other.Key() == w.Key() {
			return
		}
	}
	p.plan.Auto = append(p.plan.Auto, w)
}

// moved has each clone moved along: one at the path that the forge had for it to the forge's new one; one at a
// path of the user's own stays there, and is fetched from elsewhere. When it was watched under its new name alone,
// that is looked at.
func (p *planner) moved(e forge.Event) {
	from := p.watches(e.FromURL)
	if len(from) == 0 {
		to := p.watches(e.URL)
		if p.due(to); len(to) == 0 {
			p.ignore(fmt.Sprintf("nobody watches %s or %s", e.From, e.Repo))
		}
		return
	}
	if e.From.Equal(e.Repo) { // spelled another way, it is where it was
		p.due(from)
		return
	}
	for _, w := range firsts(from, whichever) {
		to := w.Repo
		if to.Equal(e.From) {
			to = e.Repo
		}
		p.add(events.Change{Type: events.ChangeMoved, Repo: w.Repo, To: to, URL: movedURL(w.URL, e), Credential: w.Credential, Foreign: true})
	}
}

// watches are those of the remote at url, whatever their paths: by repository, then app, then ref.
func (p *planner) watches(url string) []watch.Watch {
	all := p.placed[watch.RemoteKey(url)].Watches
	other := func(w watch.Watch) bool { return !watch.SameRemote(w.URL, url) }
	if !slices.ContainsFunc(all, other) { // seldom: only then is anything copied
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), other)
}

// firsts are, of each repository that is among watches, the first that will do.
func firsts(watches []watch.Watch, do func(watch.Watch) bool) (first []watch.Watch) {
	for _, w := range watches {
		if (len(first) == 0 || !first[len(first)-1].Repo.Equal(w.Repo)) && do(w) {
			first = append(first, w)
		}
	}
	return first
}

func whichever(watch.Watch) bool { return true }

// change asks that ref be brought up to date for a watch.
func (p *planner) change(w watch.Watch, ref events.Ref, after string) {
	exact, _ := w.Ref.Ref()
	what := asked{events.ChangePushed, w.Repo.Key(), w.App, ref.String()}
	i, again := p.at[what]
	if again && exact != ref {
		return // a pattern gives way to the very ref, and the default branch to what came first
	}
	if !again {
		var room bool
		if i, room = p.room(what); !room {
			return
		}
	}
	c, err := w.Change(p.id(i), p.source(), ref, after)
	if err != nil {
		p.refuse(what, again, err)
		return
	}
	c.Foreign = w.Auto
	p.put(i, c)
}

// due asks that the remote be asked which watched refs of each repository have moved.
func (p *planner) due(watches []watch.Watch) {
	for _, w := range firsts(watches, whichever) {
		p.add(events.Change{Type: events.ChangeDue, Repo: w.Repo})
	}
}

func (p *planner) add(c events.Change) {
	what := asked{c.Type, c.Repo.Key(), c.App, c.Ref.String()}
	if _, again := p.at[what]; again {
		return
	}
	i, room := p.room(what)
	if !room {
		return
	}
	c.ID, c.Source = p.id(i), p.source()
	c, err := events.NewChange(c)
	if err != nil {
		p.refuse(what, false, err)
		return
	}
	p.put(i, c)
}

// room returns the place of the next change, if there may be one more.
func (p *planner) room(what asked) (place int, ok bool) {
	if len(p.plan.Changes) == maxChanges {
		p.overflow = true
		return 0, false
	}
	p.at[what] = len(p.plan.Changes)
	return len(p.plan.Changes), true
}

func (p *planner) put(place int, c events.Change) {
	if place == len(p.plan.Changes) {
		p.plan.Changes = append(p.plan.Changes, c)
		return
	}
	p.plan.Changes[place] = c
}

// refuse notes why there is no change.
func (p *planner) refuse(what asked, again bool, err error) {
	if !again {
		delete(p.at, what)
	}
	p.ignore(err.Error())
}

// askAll plans, instead of too many changes, that each watched repository's remote be asked.
func (p *planner) askAll() {
	p.plan.Changes, p.overflow = nil, false
	clear(p.at)
	for _, url := range Concerned(p.delivery) {
		p.due(p.watches(url))
	}
}

// ignore notes why something leads to no change; the first reason stays.
func (p *planner) ignore(why string) {
	if p.plan.Ignored == "" {
		p.plan.Ignored = why
	}
}

func (p *planner) source() string { return "/hooks/" + p.src.Name }

const maxID = 255 // bytes of a change's id

// id is the id of the nth change: the same for the same delivery, whenever it is taken.
func (p *planner) id(n int) string {
	id := p.src.Name + "/" + p.delivery.ID + "/" + strconv.Itoa(n)
	if len(id) > maxID {
		sum := sha256.Sum256([]byte(p.delivery.ID))
		id = p.src.Name + "/" + hex.EncodeToString(sum[:]) + "/" + strconv.Itoa(n)
	}
	return id
}

func cmpRef(ref events.Ref) string {
	if ref.IsZero() {
		return "the default branch"
	}
	return ref.String()
}
