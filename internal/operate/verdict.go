package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
)

// Verdict says what is wrong with a deployment, the same in all places that show it.
type Verdict struct {
	Health Health    `json:"health"`
	Needs  []Concern `json:"needs_a_person"` // goes on only if somebody does something
	Waits  []Concern `json:"waits"`          // goes on by itself
	Well   string    `json:"well"`
}

// Health is a Verdict in a word.
type Health string

// The healths.
const (
	HealthOK        Health = "ok"
	HealthWaiting   Health = "waiting"   // something waits, nothing needs a person
	HealthAttention Health = "attention" // something needs a person
)

// Concern is something that needs a person, or waits.
type Concern struct {
	Text string `json:"text"`
	See  Look   `json:"see"`
}

// Look is where to look for more.
type Look string

// The places: commands and pages of about these names.
const (
	LookWorkers Look = "workers"
	LookRepos   Look = "repos"
	LookHosts   Look = "hosts"
	LookNotify  Look = "notify"
	LookDead    Look = "dead"
	LookVolume  Look = "volume"
)

// Facts are what a Verdict is derived from.
type Facts struct {
	Watched int64    // repositories
	Workers int      // that take changes
	Lost    []Worker // that are missing; those with another state do not matter
	Dead    int64
	Hosts   []hosts.Host    // those not limited do not matter
	Failing []state.Summary // that fail, or have a refused commit
	More    int64           // failing repositories that Failing lacks
	Missing []string        // cells that do not answer, of which nothing is known
	Boxes   int64           // repositories whose next notification to an app has failed
	Apps    []string        // some of these apps
	Full    bool            // the volume is nearly full
	Unasked Unasked

	Groups []Group
}

// Unasked is how many repositories are not polled although a poll is due, because no scheduler runs. None is while
// schedulers pause: see [schedule.MaxBacklog].
type Unasked struct {
	Repos int64
	Since time.Time
}

// NearlyFull reports whether a volume has less than a twentieth of its size free. A size of 0 is unknown.
func NearlyFull(free, size int64) bool { return size > 0 && free < size/20 }

// longWait is how old an unsettled entry may be.
const longWait = 5 * time.Minute

// Verdict derives the verdict.
func (f Facts) Verdict() Verdict {
	v := Verdict{Needs: []Concern{}, Waits: []Concern{}}
	needs := func(see Look, format string, args ...any) {
		v.Needs = append(v.Needs, Concern{fmt.Sprintf(format, args...), see})
	}
	waits := func(see Look, format string, args ...any) {
		v.Waits = append(v.Waits, Concern{fmt.Sprintf(format, args...), see})
	}
	if len(f.Missing) > 0 {
		needs(LookWorkers, "no answer from cell %s", Listed(f.Missing))
	}
	if f.Workers == 0 {
		needs(LookWorkers, "no worker takes changes")
	}
	if f.Unasked.Repos > 0 {
		needs(LookWorkers, "no scheduler polls: %s overdue, since %s",
			counted(f.Unasked.Repos, "repository is", "repositories are"), f.Unasked.Since.Format(time.RFC3339))
	}
	if f.Full {
		needs(LookVolume, "the volume is nearly full")
	}
	final, retried := f.byCause()
	for _, cause := range slices.Sorted(maps.Keys(final)) {
		needs(LookRepos, "%s: %s", cause, namesOf(final[cause]))
	}
	if refused := f.refused(); len(refused) > 0 {
		needs(LookRepos, "commits refused: %s", namesOf(refused))
	}
	if f.Dead > 0 {
		needs(LookDead, "%s", counted(f.Dead, "dead letter", "dead letters"))
	}
	var names []string
	for _, w := range f.Lost {
		if w.State == WorkerMissing {
			names = append(names, w.Name+" since "+w.Heard.UTC().Format(time.RFC3339))
		}
	}
	if len(names) > 0 && f.Workers > 0 {
		waits(LookWorkers, "%s: %s", counted(int64(len(names)), "worker is missing", "workers are missing"), Listed(names))
	}
	for _, h := range f.Hosts {
		if isLimited(h) {
			waits(LookHosts, "%s: %s until %s, %s", h.Host, h.Reason, h.Until.UTC().Format("15:04:05Z"),
				counted(int64(h.Waiting), "repository waits", "repositories wait"))
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(retried)) {
		waits(LookRepos, "%s, retried: %s", cause, namesOf(retried[cause]))
	}
	if f.More > 0 {
		waits(LookRepos, "%s", counted(f.More, "more repository fails", "more repositories fail"))
	}
	if f.Boxes > 0 {
		waits(LookNotify, "notifications to %s about %s", Listed(f.Apps), counted(f.Boxes, "repository", "repositories"))
	}
	for _, g := range f.Groups {
		if wait := time.Duration(g.OldestMS) * time.Millisecond; wait > longWait {
			waits(LookWorkers, "group %s has not settled entry %s for %s", g.Group, g.Oldest, wait.Round(time.Second))
		}
	}
	v.Well = counted(f.Watched, "repository is watched", "repositories are watched") + ", " + f.failing()
	v.Health = v.health()
	return v
}

func (v Verdict) health() Health {
	switch {
	case len(v.Needs) > 0:
		return HealthAttention
	case len(v.Waits) > 0:
		return HealthWaiting
	}
	return HealthOK
}

// MergeVerdicts returns the verdict on a service of several cells: what each has, after its name. Cells share hosts, so a
// limited one is there once, as its first cell has it.
func MergeVerdicts(byCell map[string]Verdict, missing []cells.Missing) Verdict {
	all := Verdict{Needs: []Concern{}, Waits: []Concern{}}
	if len(missing) > 0 {
		all.Needs = append(all.Needs, Concern{"no answer from cell " + Listed(Names(missing)), LookWorkers})
	}
	var well []string
	limited := map[string]bool{}
	for _, cell := range slices.Sorted(maps.Keys(byCell)) {
		v := byCell[cell]
		for _, c := range v.Needs {
			all.Needs = append(all.Needs, Concern{cell + ": " + c.Text, c.See})
		}
		for _, c := range v.Waits {
			if host, _, _ := strings.Cut(c.Text, ": "); c.See == LookHosts {
				if limited[host] {
					continue
				}
				limited[host] = true
			}
			all.Waits = append(all.Waits, Concern{cell + ": " + c.Text, c.See})
		}
		well = append(well, cell+": "+v.Well)
	}
	all.Well = strings.Join(well, "; ")
	all.Health = all.health()
	return all
}

// failing says how many repositories fail.
func (f Facts) failing() string {
	n := f.More
	for _, repo := range f.Failing {
		if len(repo.Failing) > 0 {
			n++
		}
	}
	if n == 0 {
		return "none fails"
	}
	return counted(n, "fails", "fail")
}

const maxCauses = 20 // above that, credentials are not told apart

// byCause returns the failing repositories by the class of their errors, with the credential that fails: those that somebody
// has to do something about, as nothing tries again before the next push or poll, and those that are retried.
func (f Facts) byCause() (final, retried map[string][]string) {
	final, retried = map[string][]string{}, map[string][]string{}
	limited := slices.ContainsFunc(f.Hosts, isLimited)
	for _, repo := range f.Failing {
		for _, t := range repo.Failing {
			list := final
			if t.Next != nil {
				list = retried
			}
			if limited && t.Next != nil && t.Class == events.ClassBusy {
				continue // it is one of the hosts' waiting repositories
			}
			cause := string(cmp.Or(t.Class, events.ClassInternal))
			ofCredential := t.Scope == events.ScopeCredential || t.Scope == events.ScopeHostCredential
			if ofCredential && t.Credential != "" {
				if named := cause + ", credential " + t.Credential; list[named] != nil || len(list) < maxCauses {
					cause = named
				}
			}
			if !slices.Contains(list[cause], repo.Repo) {
				list[cause] = append(list[cause], repo.Repo)
			}
		}
	}
	return final, retried
}

func isLimited(h hosts.Host) bool { return !h.Until.IsZero() }

func (f Facts) refused() (repos []string) {
	for _, repo := range f.Failing {
		if len(repo.Refused) > 0 {
			repos = append(repos, repo.Repo)
		}
	}
	return repos
}

// namesOf returns how many repositories there are, and the first names.
func namesOf(repos []string) string {
	return counted(int64(len(repos)), "repository", "repositories") + ", " + Listed(repos)
}

// Listed returns at most three of the names.
func Listed(names []string) string {
	const most = 3
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += " and others"
	}
	return text
}

func counted(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}
