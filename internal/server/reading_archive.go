package server

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"lockstep/internal/archive"
)

// sendArchive streams an archive of a tree, or of some of its paths.
func (s *Reading) sendArchive(w http.ResponseWriter, r *http.Request, from request) error {
	format, err := archive.ParseFormat(r.URL.Query().Get("format"))
	if err != nil {
		return badRequest(err)
	}
	paths, err := pathsOf(r)
	if err != nil {
		return err
	}
	o, err := s.open(r, from)
	if err != nil {
		return err
	}
	defer o.Close()
	contents := o.contents(paths)
	summary, err := s.summarize(r, from, contents)
	if err != nil {
		return err
	}
	if summary.Files == 0 && len(paths) > 0 {
		return problem{fmt.Errorf("paths: no file of %s at %.12s is selected", o.ref.Ref, o.ref.Commit), http.StatusNotFound}
	}
	tag := summary.ETag(format)
	o.describe(w)
	w.Header().Set("ETag", tag)
	if matches(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	name := path.Base(o.repo.String()) + "-" + o.ref.Commit[:12] + "." + string(format)
	w.Header().Set("Content-Type", format.MediaType())
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	if r.Method == http.MethodHead {
		return nil
	}
	release, err := s.archives.take(from.who.App, maxArchives, maxArchivesApp, errBusyArchives)
	if err != nil {
		return err
	}
	defer release()
	answer := newPatient(w)
	sum := sha256.New()
	if err := contents.Write(r.Context(), io.MultiWriter(answer, sum), format); err != nil {
		return s.abort(answer, r, from, err)
	}
	s.digests.add(o.Dir(), tag, digest{fmt.Sprintf("sha256:%x", sum.Sum(nil)), answer.sent})
	return nil
}

// summarize reads the list of files.
func (s *Reading) summarize(
	r *http.Request, from request, contents *archive.Contents,
) (summary archive.Summary, err error) {
	err = s.scans.Run(r.Context(), from.who.App, func() (err error) {
		summary, err = contents.Summary(r.Context())
		return err
	})
	return summary, err
}

// abort returns the error if nothing was sent. Otherwise it breaks the connection, so that the client notices
// that the archive is incomplete.
func (s *Reading) abort(answer *patient, r *http.Request, from request, err error) error {
	if answer.sent == 0 {
		return err
	}
	if r.Context().Err() == nil {
		from.cfg.Log.WarnContext(r.Context(), "response aborted", "path", shownPath(r), "sent", answer.sent, "error", err)
	}
	panic(http.ErrAbortHandler)
}

// pathsOf returns the values of the parameter paths, which may be repeated, each with any number of paths
// separated by commas.
func pathsOf(r *http.Request) ([]string, error) {
	var list []string
	for _, value := range r.URL.Query()["paths"] {
		list = append(list, splitPaths(value)...)
	}
	paths, err := archive.ParsePaths(list)
	if err != nil {
		return nil, badRequest(err)
	}
	return paths, nil
}

// splitPaths splits at commas that are neither in braces nor after a backslash.
func splitPaths(value string) (paths []string) {
	depth, start := 0, 0
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\':
			i++
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth <= 0:
			paths, start = append(paths, value[start:i]), i+1
		}
	}
	return append(paths, value[start:])
}

// Artifact describes an archive in the terms of Flux' ExternalArtifact.
type Artifact struct {
	Repo     string `json:"repo"`
	Ref      string `json:"ref"`
	Commit   string `json:"commit"`
	Revision string `json:"revision"` // branch@sha1:commit
	Digest   string `json:"digest"`   // sha256:… of the archive
	Size     int64  `json:"size"`     // of the archive, in bytes
	URL      string `json:"url"`
}

// showArtifact describes an archive with its digest. It makes the archive if this process has not made it lately.
func (s *Reading) showArtifact(w http.ResponseWriter, r *http.Request, from request) error {
	query := r.URL.Query()
	format := archive.TarGz
	if text := query.Get("format"); text != "" {
		var err error
		if format, err = archive.ParseFormat(text); err != nil {
			return badRequest(err)
		}
	}
	o, err := s.open(r, from)
	if err != nil {
		return err
	}
	defer o.Close()
	contents := o.contents(nil)
	summary, err := s.summarize(r, from, contents)
	if err != nil {
		return err
	}
	made, err := s.digests.get(o.Dir(), summary.ETag(format), func(w io.Writer) error {
		release, err := s.archives.take(from.who.App, maxArchives, maxArchivesApp, errBusyArchives)
		if err != nil {
			return err
		}
		defer release()
		return contents.Write(r.Context(), w, format)
	})
	if err != nil {
		return err
	}
	algorithm := "sha1"
	if len(o.ref.Commit) > 40 {
		algorithm = "sha256"
	}
	name := strings.TrimPrefix(strings.TrimPrefix(o.ref.Ref.String(), "refs/heads/"), "refs/tags/")
	values := url.Values{"commit": {o.ref.Commit}, "format": {string(format)}}
	reply(newPatient(w), http.StatusOK, Artifact{
		Repo: o.repo.String(), Ref: o.ref.Ref.String(), Commit: o.ref.Commit, Revision: name + "@" + algorithm + ":" +
			o.ref.Commit,
		Digest: made.sum, Size: made.size,
		URL: from.cfg.baseURL(r) + "/api/v1/repos/" + url.PathEscape(o.repo.String()) + "/archive?" + values.Encode(),
	})
	return nil
}

// baseURL returns the scheme and host that the client used.
func (cfg Config) baseURL(r *http.Request) string {
	if base := r.Header.Get(baseHeader); base != "" && onlyOwn(r) {
		return base
	}
	scheme, host := "http", r.Host
	if r.TLS != nil || cfg.private(r) && r.Header.Get("X-Forwarded-Proto") != "" {
		scheme = "https"
	}
	if forwarded := r.Header.Get("X-Forwarded-Host"); forwarded != "" && cfg.proxied(r) {
		host = forwarded
	}
	return scheme + "://" + host
}

// digest is the SHA-256 and the size of an archive.
type digest struct {
	sum  string // sha256:…
	size int64
}

// digests caches the digests of recent archives, by tree and entity tag. Equal trees of other repositories do
// not share an entry: response times would reveal the other repository to an app, and an alteration of one
// tree would affect the other.
type digests struct {
	mu   sync.Mutex
	made map[[2]string]digest
}

const maxDigests = 1000

func (d *digests) add(tree, tag string, made digest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made == nil || len(d.made) >= maxDigests {
		d.made = map[[2]string]digest{}
	}
	d.made[[2]string{tree, tag}] = made
}

// get returns the digest of an archive, which it makes if necessary.
func (d *digests) get(tree, tag string, write func(io.Writer) error) (digest, error) {
	d.mu.Lock()
	made, ok := d.made[[2]string{tree, tag}]
	d.mu.Unlock()
	if ok {
		return made, nil
	}
	counted := &counter{Hash: sha256.New()}
	if err := write(counted); err != nil {
		return digest{}, err
	}
	made = digest{fmt.Sprintf("sha256:%x", counted.Sum(nil)), counted.n}
	d.add(tree, tag, made)
	return made, nil
}

type counter struct {
	hash.Hash
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}
