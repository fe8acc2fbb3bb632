package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/feed"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

// maxRows limits each list on the screen.
const maxRows = 4

// maxErrorText limits the text of an error in a row, in bytes.
const maxErrorText = 100

// Table prints the state of the service. It fits 80 columns and 24 rows unless much is wrong.
func (s Service) Table(w io.Writer) {
	fmt.Fprintf(w, "health\t%s: %s\n", s.Health, s.Well)
	for _, c := range s.Needs {
		fmt.Fprintf(w, "needs\t%s\n", term.Printable(c.Text))
	}
	for _, c := range s.Waits {
		fmt.Fprintf(w, "waits\t%s\n", term.Printable(c.Text))
	}
	fmt.Fprintf(w, "redis\t%s, prefix %s\n", s.Redis, s.Prefix)
	if d := s.Durability; d.Reason != "" {
		fmt.Fprintf(w, "persist\t%s: %s\n", d.Level, d.Reason)
	}
	oldest := ""
	if s.OldestMS > 0 {
		oldest = ", oldest " + duration(time.Duration(s.OldestMS)*time.Millisecond)
	}
	unread := "some unread"
	if s.Unread >= 0 {
		unread = fmt.Sprintf("%d unread", s.Unread)
	}
	fmt.Fprintf(w, "changes\t%d kept, %s, %d pending%s%s%s\n", s.Changes, unread, s.Pending,
		more(s.Parked, "parked"), more(s.Late, "overdue"), oldest)
	fmt.Fprintf(w, "results\t%d kept, %s\n", s.Results, s.Settled)
	leases := fmt.Sprintf("%d held", s.Leases.Held)
	if !s.Leases.Complete {
		leases = fmt.Sprintf("at least %d held (search incomplete)", s.Leases.Held)
	}
	fmt.Fprintf(w, "workers\t%d%s, at work on %d; leases: %s, %d waited for\n", s.Workers,
		more(int64(operate.Unheard(s.Away)), operate.WorkerUnheard), len(s.Activities), leases, len(s.Leases.Contended))
	failing := fmt.Sprintf("%d of %d failing", s.Repos.Failing, s.Repos.Looked)
	if !s.Repos.Complete {
		failing = fmt.Sprintf("%d failing; search for missing files incomplete after %d", s.Repos.Failing, s.Repos.Looked)
	}
	fmt.Fprintf(w, "repos\t%s, %d circuits open; %d watched\n", failing, s.Repos.Open, s.Watched)
	fmt.Fprintf(w, "dead\t%s\n", s.dead())
	fmt.Fprintf(w, "notify\t%d waiting to be posted%s\n", s.Notifications, s.failingBoxes())
	if u := s.Unwatched; u.Count > 0 {
		fmt.Fprintf(w, "hooks\t%d in the last hour without a watch: %s; see watch add\n", u.Count, term.Printable(operate.Listed(u.Repos)))
	}
	if v := s.Volume; v != nil {
		free := ""
		if v.Root != "" {
			free = fmt.Sprintf(", %s of %s free at %s", volume.BytesText(v.Free), volume.BytesText(v.Size), v.Root)
		}
		fmt.Fprintf(w, "volume\t%s%s\n", v.ID, free)
	}
	s.groupRows(w)
	s.activityRows(w)
	s.contentionRows(w)
	s.HostRows(w)
	s.followerRows(w)
	s.failureRows(w)
	refRows(w, "COMMIT REFUSED", s.Repos.Refused, func(r operate.RepoSummary) []string { return r.Refused })
	refRows(w, strings.ToUpper(Missing), s.Repos.Missing, func(r operate.RepoSummary) []string { return r.Missing })
	s.leftOutRows(w)
}

// more returns the end of an enumeration, or nothing for 0.
func more(n int64, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d %s", n, what)
}

// String formats the rate with its window.
func (r rate) String() string {
	over := time.Duration(r.OverMS) * time.Millisecond
	if over == rateWindow {
		return fmt.Sprintf("%.1f/s in the last minute", r.PerSecond)
	}
	return fmt.Sprintf("%.1f/s: the last %d in %s", r.PerSecond, r.Results, duration(over))
}

// failingBoxes says how many repositories have a notification that failed, and of which apps.
func (s Service) failingBoxes() string {
	return more(s.FailingBoxes, "failing: "+term.Printable(operate.Listed(s.FailingApps)))
}

func (s Service) dead() string {
	if s.Dead == 0 {
		return "0"
	}
	reasons := slices.SortedFunc(maps.Keys(s.DeadReasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.DeadReasons[b], s.DeadReasons[a]), cmp.Compare(a, b))
	})
	parts := make([]string, len(reasons))
	for i, reason := range reasons {
		parts[i] = fmt.Sprintf("%s: %d", reason, s.DeadReasons[reason])
	}
	of := ""
	if s.Dead > maxLetters {
		of = fmt.Sprintf("of the newest %d, ", maxLetters)
	}
	return fmt.Sprintf("%d (%s%s)", s.Dead, of, strings.Join(parts, ", "))
}

func (s Service) groupRows(w io.Writer) {
	section(w, "GROUP\tSTREAM\tLAG\tPENDING\tOVERDUE\tOLDEST\tCONSUMERS", s.Groups, func(g operate.Group) string {
		consumers := g.Consumers
		if g.Group == events.WorkersGroup { // others may be idle: a plain XREADGROUP sends no heartbeat while it waits
			consumers = g.Live
		}
		return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s\t%d", g.Group, strings.TrimPrefix(g.Stream, s.Prefix),
			orUnknown(g.Lag), g.Pending, g.Late, duration(time.Duration(g.OldestMS)*time.Millisecond), consumers)
	})
	if slices.ContainsFunc(s.Groups, func(g operate.Group) bool { return g.Lag < 0 }) {
		fmt.Fprintln(w, "lag unknown: Redis does not count unread after deletions, or before 7.0")
	}
}

func (s Service) activityRows(w io.Writer) {
	section(w, "AT WORK ON\tFOR\tPHASE\tWORKER", s.Activities, func(a state.Activity) string {
		return fmt.Sprintf("%s %s\t%s\t%s\t%s", a.Operation, a.Repo, duration(a.At.Sub(a.Since)), Progress(a.Progress),
			a.Worker)
	})
}

func (s Service) contentionRows(w io.Writer) {
	section(w, "WAITED FOR\tBY\tHELD FOR\tHOLDER", s.Leases.Contended, func(l operate.Lease) string {
		return fmt.Sprintf("%s\t%d\t%s\t%s, job %s on %s", l.Repo, len(l.Waiters), duration(s.now.Sub(*l.Since)),
			l.Holder.Operation, term.Printable(l.Holder.Job), term.Printable(l.Holder.Worker))
	})
}

// HostRows prints the table of hosts, which Table has unless there are none.
func (s Service) HostRows(w io.Writer) {
	section(w, "HOST\tWAITING\tREASON\tUNTIL\tCREDENTIALS", s.Hosts, func(h hosts.Host) string {
		until := "-"
		if !h.Until.IsZero() {
			until = term.Relative(h.Until, s.local)
		}
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", term.Printable(h.Host), h.Waiting,
			term.Dash(term.Printable(string(h.Reason))), until, term.Dash(HostCredentials(h)))
	})
}

func (s Service) followerRows(w io.Writer) {
	section(w, "FOLLOWER\tAPP\tSTATE\tBEHIND\tLAG\tCURSOR\tREPORTED\tVERSION", s.Followers, func(f feed.Follower) string {
		lag := "-" // of a first copy, or unknown
		if f.LagMS >= 0 {
			lag = duration(time.Duration(f.LagMS) * time.Millisecond)
		}
		return fmt.Sprintf("%s\t%s\t%s\t%d/%d\t%s\t%s\t%s ago\t%s", term.Printable(f.Name),
			term.Dash(term.Printable(f.App)), f.State, f.Behind, f.Repos, lag,
			term.Dash(f.Entry), duration(s.now.Sub(f.Seen).Round(time.Second)), term.Dash(term.Printable(f.Version)))
	})
}

// HostCredentials returns the names of the credentials that a host limits, or "".
func HostCredentials(h hosts.Host) string {
	names := make([]string, len(h.Limited))
	for i, c := range h.Limited {
		names[i] = CredentialName(c.Credential)
	}
	return strings.Join(names, ", ")
}

// CredentialName returns the name of a credential as shown to users.
func CredentialName(name string) string { return cmp.Or(term.Printable(name), "(anonymous)") }

func (s Service) failureRows(w io.Writer) {
	section(w, "FAILING\tIN A ROW\tCIRCUIT\tSYNCED\tLAST ERROR", s.Repos.Worst, func(r operate.RepoSummary) string {
		last := "-"
		if len(r.Failing) > 0 {
			last = FailureText(r.Failing[0], maxErrorText)
		}
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", r.Repo, r.InARow(), Circuit(r), s.synced(r), last)
	})
}

// leftOutRows prints repositories with refs that watches select, but that are not kept.
func (s Service) leftOutRows(w io.Writer) {
	section(w, "REFS LEFT OUT\tHOW MANY", s.Repos.LeftOut, func(r operate.RepoSummary) string {
		texts := make([]string, len(r.LeftOut))
		for i, l := range r.LeftOut {
			texts[i] = l.String()
		}
		return fmt.Sprintf("%s\t%s", r.Repo, term.Printable(strings.Join(texts, "; ")))
	})
}

// refRows prints repositories with some of their refs.
func refRows(w io.Writer, heading string, repos []operate.RepoSummary, refs func(operate.RepoSummary) []string) {
	section(w, heading+"\tREFS", repos, func(r operate.RepoSummary) string {
		return fmt.Sprintf("%s\t%s", r.Repo, term.Printable(strings.Join(refs(r), " ")))
	})
}

// section prints rows below a heading, or nothing if there are none.
func section[T any](w io.Writer, heading string, all []T, row func(T) string) {
	if len(all) > 0 {
		fmt.Fprintf(w, "\n%s\n", heading)
		rows(w, all, row)
	}
}

// rows prints the first rows and the number of omitted ones.
func rows[T any](w io.Writer, all []T, row func(T) string) {
	shown := all
	if len(all) > maxRows {
		shown = all[:maxRows-1]
	}
	for _, one := range shown {
		fmt.Fprintln(w, row(one))
	}
	if more := len(all) - len(shown); more > 0 {
		fmt.Fprintf(w, "and %d more; see -o json\n", more)
	}
}

// Progress formats progress, as "fetch 12MiB of 40MiB".
func Progress(p events.Progress) string {
	amount := func(n int64) string {
		if p.Unit == "bytes" {
			return volume.BytesText(n)
		}
		return strconv.FormatInt(n, 10)
	}
	switch {
	case p.Phase == "":
		return "begins"
	case p.Unit == "" || p.Done == 0 && p.Total == 0:
		return string(p.Phase)
	}
	text := string(p.Phase) + " " + amount(p.Done)
	if p.Total > 0 {
		text += " of " + amount(p.Total)
	}
	if p.Unit != "bytes" {
		text += " " + p.Unit
	}
	return text
}

func orUnknown(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return strconv.FormatInt(n, 10)
}

// duration formats d in its two largest units, below a minute in tenths of a second.
func duration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func (s Service) synced(r operate.RepoSummary) string {
	switch {
	case r.Removed != "":
		return "removed"
	case r.Synced == nil:
		return "never"
	}
	return term.Relative(*r.Synced, s.now)
}

// Circuit formats the state of a circuit breaker. It is not called closed beside what fails for another reason.
func Circuit(r operate.RepoSummary) string {
	switch {
	case r.Circuit.OpenUntil != nil:
		return "open until " + r.Circuit.OpenUntil.Format(time.RFC3339)
	case r.Circuit.Phase == state.CircuitClosed && r.InARow() > 0:
		return "-"
	}
	return string(r.Circuit.Phase)
}
