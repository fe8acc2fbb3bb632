package demo

import (
	"fmt"
	"strings"
	"time"

	"lockstep/internal/cli/term"
)

// frame is the picture of this moment, as rows of cells.
func (d *demo) frame() string {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	var b strings.Builder
	b.WriteString("\nworkers")
	for _, c := range d.staff.all() {
		switch {
		case c.killed.Load():
			fmt.Fprintf(&b, "   %s", term.Paint(term.MarkBad, c.name+" killed"))
		case !c.running():
			fmt.Fprintf(&b, "   %s ended", c.name)
		default:
			fmt.Fprintf(&b, "   %s pid %d", term.Paint(term.MarkGood, c.name+" alive"), c.pid())
		}
	}
	b.WriteString("\n\n" + term.Paint(term.MarkFaint, "repository\tpushed\tfetched\tpublished\twaiting\t latest\tlease of      \tin line") + "\n")
	for _, repo := range d.board.repos {
		name, fetched := repo.name, d.asked(repo.name).UploadPacks-repo.before.UploadPacks
		if repo == d.board.hot() {
			name = term.Paint(term.MarkWarn, name)
		}
		fmt.Fprintf(&b, "%s\t%6d\t%7d\t%9d\t%7d\t%4d ms\t%s\t%s\n", name,
			repo.pushes, fetched, repo.published, repo.waiting, repo.last.Milliseconds(), d.holder(repo), inLine(repo))
	}
	torn := term.Paint(term.MarkGood, "0 torn")
	if d.board.torn > 0 {
		torn = term.Paint(term.MarkBad, fmt.Sprintf("%d torn", d.board.torn))
	}
	fmt.Fprintf(&b, "\n%5.1fs   %s   %d trees read, %s\n", time.Since(d.view.began).Seconds(), d.board.tally(), d.board.reads, torn)
	return b.String()
}

// line is the same in a line.
func (d *demo) line() string {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	return fmt.Sprintf("%s; %d trees read, %d torn", d.board.tally(), d.board.reads, d.board.torn)
}

// tally is how far everything has come.
func (b *demoBoard) tally() string {
	return fmt.Sprintf("%d pushes, %d changes, %d results, %d waiting", b.pushesLocked(), b.issued, b.results, len(b.waiting))
}

// holder says who holds the lease of a repository; the dead may hold it for a while.
func (d *demo) holder(repo *demoRepo) string {
	if !repo.lock.Held {
		return "-"
	}
	name := repo.lock.Holder.Worker
	if d.staff.named(name) == nil {
		return term.Paint(term.MarkBad, fmt.Sprintf("%s dead, %.1fs", name, repo.lock.Holder.Remaining.Seconds()))
	}
	return name
}

// inLine says who waits for it.
func inLine(repo *demoRepo) string {
	if len(repo.lock.Waiters) == 0 {
		return "-"
	}
	names := make([]string, len(repo.lock.Waiters))
	for i, w := range repo.lock.Waiters {
		names[i] = w.Worker
	}
	return strings.Join(names, " ")
}
