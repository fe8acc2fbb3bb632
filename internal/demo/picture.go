package demo

import (
	"fmt"
	"strings"
	"time"

	"lockstep/internal/term"
)

// frame draws the current state as rows of cells.
func (d *demo) frame() string {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	var b strings.Builder
	b.WriteString("\nworkers")
	for _, c := range d.workers.all() {
		switch {
		case c.killed.Load():
			fmt.Fprintf(&b, "   %s", term.Paint(term.MarkBad, c.name+" killed"))
		case !c.running():
			fmt.Fprintf(&b, "   %s ended", c.name)
		default:
			fmt.Fprintf(&b, "   %s pid %d", term.Paint(term.MarkGood, c.name+" alive"), c.pid())
		}
	}
	b.WriteString("\n\n" + term.Paint(term.MarkFaint, "repository\tpushed\tfetched\tpublished\twaiting\t latest\tlease of      \twait queue") + "\n")
	for _, repo := range d.board.repos {
		name, fetched := repo.name, d.git.Stats(repo.name).UploadPacks-repo.before.UploadPacks
		if repo == d.board.hot() {
			name = term.Paint(term.MarkWarn, name)
		}
		fmt.Fprintf(&b, "%s\t%6d\t%7d\t%9d\t%7d\t%4d ms\t%s\t%s\n", name,
			repo.pushes, fetched, repo.published, repo.waiting, repo.last.Milliseconds(), d.holder(repo), waitQueue(repo))
	}
	torn := term.Paint(term.MarkGood, "0 torn")
	if d.board.torn > 0 {
		torn = term.Paint(term.MarkBad, fmt.Sprintf("%d torn", d.board.torn))
	}
	fmt.Fprintf(&b, "\n%5.1fs   %s   %d trees read, %s\n", time.Since(d.view.began).Seconds(), d.board.tally(), d.board.reads, torn)
	return b.String()
}

// line formats the current state in one line.
func (d *demo) line() string {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	return fmt.Sprintf("%s; %d trees read, %d torn", d.board.tally(), d.board.reads, d.board.torn)
}

// tally formats the progress.
func (b *board) tally() string {
	return fmt.Sprintf("%d pushes, %d changes, %d results, %d waiting", b.pushesLocked(), b.issued, b.results, len(b.waiting))
}

// holder formats the holder of a lease, which may be a killed worker.
func (d *demo) holder(repo *sampleRepo) string {
	if !repo.lock.Held {
		return "-"
	}
	name := repo.lock.Holder.Worker
	if d.workers.named(name) == nil {
		return term.Paint(term.MarkBad, fmt.Sprintf("%s dead, %.1fs", name, repo.lock.Holder.Remaining.Seconds()))
	}
	return name
}

// waitQueue formats the waiters for a lease.
func waitQueue(repo *sampleRepo) string {
	if len(repo.lock.Waiters) == 0 {
		return "-"
	}
	names := make([]string, len(repo.lock.Waiters))
	for i, w := range repo.lock.Waiters {
		names[i] = w.Worker
	}
	return strings.Join(names, " ")
}
