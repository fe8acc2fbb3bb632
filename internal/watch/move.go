package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"unicode"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Move moves the watches of a repository to another path and the remote at moved, in one step, and returns the number
// of watches that changed. Watches that use SSH keep using SSH, those over HTTP keep using HTTP. An existing watch of
// the same app and refs at the destination is kept. Move queues a poll and no removal. It is idempotent. From and to
// may be the same repository, with a new spelling or a new URL. [Registry.MovedTo] returns the other path for 30 days.
//
// It returns an error if to is watched at another remote, or is above or below another watched path.
func (r *Registry) Move(ctx context.Context, from, to events.RepoPath, moved string) (n int, err error) {
	err = r.untilWritten(ctx, from, func() error {
		n = 0
		was, err := r.load(ctx, from)
		if err != nil {
			return err
		}
		watches, err := was.watches()
		if err != nil || len(watches) == 0 {
			return err
		}
		there, docs := was, map[string]string{}
		if !from.Equal(to) {
			if there, err = r.load(ctx, to); err != nil {
				return err
			}
			maps.Copy(docs, there.docs)
			if err := there.checkRemote(moved); err != nil {
				return err
			}
		}
		for _, w := range watches {
			w.Repo, w.URL = to, withTransportOf(moved, w.URL)
			if _, ok := docs[w.Key().field()]; ok {
				n++
				continue
			}
			doc, err := w.document()
			if err != nil {
				return err
			}
			if doc != was.docs[w.Key().field()] {
				n++
			}
			docs[w.Key().field()] = doc
		}
		if n == 0 {
			return nil
		}
		all, err := contents{repo: to, docs: docs}.watches()
		if err != nil {
			return err
		}
		if err := checkLimits(to, all); err != nil {
			return err
		}
		rewrites := []rewrite{{was: there, docs: docs}}
		if from.Equal(to) {
			rewrites[0].was.spelled = to.String()
		} else {
			rewrites = append(rewrites, rewrite{was: was, to: to})
		}
		return r.write(ctx, []events.Change{{Type: events.ChangeDue, Source: source, Repo: to}}, rewrites...)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// MovedTo returns the path that the watches of a repository have moved to, or zero if they have not.
func (r *Registry) MovedTo(ctx context.Context, from events.RepoPath) (events.RepoPath, error) {
	to, err := r.redis.Get(ctx, r.moved(from)).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return events.RepoPath{}, nil
	case err != nil:
		return events.RepoPath{}, fmt.Errorf("find where the watches of %s have moved: %w", from, err)
	}
	return events.ParseRepoPath(to)
}

// withTransportOf returns the URL of the remote at moved for the transport, SSH or HTTP, of the URL used, because the
// watch's credential works only with that one. It returns moved if the URLs might name different repositories.
func withTransportOf(moved, used string) string {
	if isSSH(moved) == isSSH(used) {
		return moved
	}
	target, err := url.Parse(moved)
	u, otherErr := url.Parse(used)
	if err != nil || otherErr != nil {
		return moved
	}
	u.Path, u.RawPath = target.Path, target.RawPath
	if text := u.String(); events.CheckRemote(text) == nil &&
		events.CanonicalRemote(text) == events.CanonicalRemote(moved) {
		return text
	}
	return moved
}

// checkRemote returns an error if the repository is watched at another remote.
func (c contents) checkRemote(remote string) error {
	watches, err := c.watches()
	if err != nil {
		return err
	}
	for _, w := range watches {
		if events.CanonicalRemote(w.URL) != events.CanonicalRemote(remote) {
			return conflict("%s is watched at %s by app %s; the repository to move there is at %s", c.repo,
				events.CanonicalRemote(w.URL), w.App, events.CanonicalRemote(remote))
		}
	}
	return nil
}

// document returns the JSON that the registry stores. It returns an error for a watch that could not be decoded later.
func (w Watch) document() (string, error) {
	w, err := New(w)
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "watch: %w", err)
	}
	doc, err := json.Marshal(w)
	return string(doc), err
}

// Silence stops notifications of a watch and records when and why, such as "2026-11-21T18:00:00Z answered 410
// Gone". It keeps an earlier record and queues no change. Putting the watch without [Watch.Silenced] resumes
// notifications. Silence does nothing if the watch does not exist or its NotifyURL has changed.
func (r *Registry) Silence(ctx context.Context, w Watch, why string) error {
	field := w.Key().field()
	return r.edit(ctx, w.Repo, false, func(docs map[string]string) error {
		doc, ok := docs[field]
		if !ok {
			return nil
		}
		current, err := parse([]byte(doc))
		if err != nil || current.Silenced != "" || current.NotifyURL != w.NotifyURL {
			return err
		}
		current.Silenced = oneLine(why)
		docs[field], err = current.document()
		return err
	})
}

// oneLine replaces control characters with spaces and truncates text to 200 characters.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if runes := []rune(text); len(runes) > 200 {
		return string(runes[:200]) + "…"
	}
	return text
}
