package cli

import (
	"cmp"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// none is the answer for deployments without webhooks, and for those without a file that runs the service.
const none = "none"

//go:embed init
var initFolder embed.FS

var initTemplates = template.Must(template.New("").Funcs(template.FuncMap{
	"quote": func(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }, // for YAML
}).ParseFS(initFolder, "init/*"))

// setup is what lockstep init is given, and what follows from it.
type setup struct {
	Redis, Listen, Forge, NotifyURL, App, Service, Dir string

	url    string    // of the receiver, as the forge reaches it
	before *existing // that is added to; nil for a new one

	Binary, User    string // for the unit
	Port, Published string // of the container
	PrivateHost     string // host and port of NotifyURL that notifiers refuse unless the settings list it
	UID, GID        int
}

func newInitCommand(std term.Streams) *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the settings and secrets of a new deployment",
		Long: "Write lockstep.yaml, new secrets that only this user can read and, with --service, a file that runs\n" +
			"the service, and print the values for the forge's webhook form. If one of the files exists, it\n" +
			"writes nothing. All paths in lockstep.yaml are relative to its folder: run lockstep there.\n" +
			"\n" +
			"In a folder that has lockstep.yaml, add the secrets of another --forge, or of another --app with\n" +
			"--notify-url. Files that exist stay as they are, lockstep.yaml too: it prints what to add there.",
		Example: "  lockstep init\n" +
			"  lockstep init --forge gitea --url https://lockstep.example.org --service systemd\n" +
			"  lockstep init --forge github --app docs --notify-url https://docs.example.com/hooks/lockstep\n" +
			"  lockstep init --app scan --notify-url https://scan.example.com/hooks/lockstep",
		RunE: func(*cobra.Command, []string) (err error) {
			if s.before, err = readDeployment(s.Dir); err != nil {
				return err
			}
			if err := s.complete(); err != nil {
				return term.UsageError(err)
			}
			if err := s.write(std.Stdout); err != nil {
				return err
			}
			s.printNext(std.Stdout)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.Dir, "dir", ".", "`folder` to write to")
	flags.StringVar(&s.Redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis, without a password")
	flags.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "`address` for HTTP: webhooks, API, dashboard")
	flags.StringVar(&s.Forge, "forge", none, "`kind` of forge that sends webhooks: github, gitlab, gitea, forgejo, "+
		"bitbucket-cloud, bitbucket-dc, azure, standard, or none")
	flags.StringVar(&s.url, "url", "", "`URL` at which the forge reaches this service (default: http and the address)")
	flags.StringVar(&s.App, "app", "docs", "`app` to notify, for --notify-url")
	flags.StringVar(&s.NotifyURL, "notify-url", "", "`URL` of an app that gets notifications (default: none)")
	flags.StringVar(&s.Service, "service", none, "`file` that runs the service: compose, systemd or none")
	return cmd
}

// complete checks the flags and sets what depends on them.
func (s *setup) complete() (err error) {
	if s.Dir, err = filepath.Abs(s.Dir); err != nil {
		return err
	}
	if s.before != nil {
		s.Listen, s.Service = cmp.Or(s.before.Listen, s.Listen), none
	}
	s.url = strings.TrimRight(cmp.Or(s.url, "http://"+s.Listen), "/")
	at, _ := url.Parse(s.Redis) // nil for host:port
	_, redisErr := redisx.Parse(s.Redis, nil)
	_, kindErr := forge.ParseKind(s.Forge)
	switch {
	case at != nil && at.User != nil && strings.Contains(at.User.String(), ":"):
		return errors.New("--redis: the URL contains a password, which lockstep.yaml should not have; " +
			"leave it out and set redis-password-file")
	case redisErr != nil:
		return fmt.Errorf("--redis: %w", redisErr)
	case s.before != nil && s.Forge == none && s.NotifyURL == "":
		return fmt.Errorf("%s exists: name what to add, --forge, or --app and --notify-url; or choose another folder with "+
			"--dir", filepath.Join(s.Dir, config.DefaultFile))
	case s.Listen == "":
		return errors.New("--listen: want host:port, as in 127.0.0.1:8080")
	case kindErr != nil && s.Forge != none:
		return fmt.Errorf("--forge: %w, or none", kindErr)
	case s.Forge != none && !isServiceURL(s.url):
		return errors.New("--url: want a URL such as https://lockstep.example.org")
	case s.NotifyURL != "" && (!isServiceURL(s.NotifyURL) || strings.Contains(s.NotifyURL, " ") ||
		credential.Covers([]string{s.NotifyURL}, s.NotifyURL) == 0):
		return errors.New("--notify-url: want a URL such as https://docs.example.com/hooks/lockstep")
	case s.Service != "compose" && s.Service != "systemd" && s.Service != none:
		return fmt.Errorf("--service: %q: want compose, systemd or none", s.Service)
	}
	if err := watch.CheckApp(s.App); err != nil {
		return fmt.Errorf("--app: %w", err)
	}
	if err := config.CheckAddress("--listen", s.Listen); err != nil {
		return err
	}
	return s.derive()
}

// derive sets what the templates need.
func (s *setup) derive() error {
	notified, _ := url.Parse(s.NotifyURL) // complete has checked both
	host, port, _ := net.SplitHostPort(s.Listen)
	if ip := net.ParseIP(notified.Hostname()); egress.IsLocal(notified.Hostname()) || ip != nil && ip.IsPrivate() {
		s.PrivateHost = notified.Host
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	s.Port, s.Published, s.UID, s.GID = port, strings.TrimPrefix(net.JoinHostPort(host, port), ":")+":"+port,
		os.Getuid(), os.Getgid()
	if s.Service == "compose" && host != "" && net.ParseIP(host) == nil {
		return fmt.Errorf("--listen %s: with --service compose, want an IP address or only a port, as in :8080", s.Listen)
	}
	if s.Service != "systemd" {
		return nil
	}
	me, err := user.Current()
	if err != nil {
		return fmt.Errorf("the user for the unit: %w", err)
	}
	s.User = me.Username
	s.Binary, _ = os.Executable()
	if strings.ContainsAny(s.Dir+s.Binary, " %\"\\'$\n") {
		return fmt.Errorf("--service systemd: %s and %s must not contain spaces, quotes, %% or $", s.Dir, s.Binary)
	}
	return nil
}

func isServiceURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == ""
}

// printNext prints the forge's form for a webhook, and what to do next.
func (s *setup) printNext(w io.Writer) {
	if s.Forge != none {
		form, rows := forge.FormOf(forge.Kind(s.Forge)), ""
		for _, row := range [][2]string{
			{cmp.Or(form.URL, "URL"), s.url + "/hooks/" + s.Forge}, {"Content type", form.ContentType},
			{form.Secret, "the text in " + filepath.Join(s.hook(), "secret")}, {"Events", form.Events},
		} {
			if row[1] != "" {
				rows += fmt.Sprintf("  %s\t%s\n", row[0], row[1])
			}
		}
		fmt.Fprintf(w, "\nWebhook, at %s:\n%s", form.Where, term.Align(rows))
	}
	run, start := "lockstep", map[string]string{
		none: "lockstep serve", "compose": "docker compose up --detach",
		"systemd": "sudo cp lockstep.service /etc/systemd/system/ && sudo systemctl enable --now lockstep",
	}[s.Service]
	if s.Service == "compose" {
		run = "docker compose exec lockstep /lockstep"
	}
	if s.before != nil {
		start = run + " config validate"
	}
	fmt.Fprintf(w, "\nNext, in %s:\n  %s\n  %s watch add URL --app %s", s.Dir, start, run, s.App)
	if s.NotifyURL != "" {
		fmt.Fprintf(w, " --notify-url %s --notify-secret %s", s.NotifyURL, s.App)
	}
	if s.Forge == none && s.before == nil {
		fmt.Fprint(w, " --poll 1m\nWithout webhooks, a push is noticed by the next poll, each hour unless --poll says otherwise.")
	}
	fmt.Fprintln(w, "\nSee docs/tutorial.md.")
}

// setupFile is a file that init writes. Without content, that is from the template with its name.
type setupFile struct {
	name, content string
	wanted        bool
}

// former returns the settings of the deployment that is added to, none for a new one.
func (s *setup) former() existing { return *cmp.Or(s.before, &existing{}) }

// hook returns the folder of the forge's webhooks, as in the settings.
func (s *setup) hook() string { return filepath.Join(cmp.Or(s.former().Hooks, "hooks"), s.Forge) }

// path returns where a file of the deployment is.
func (s *setup) path(name string) string {
	if filepath.IsAbs(name) { // as hooks and credentials of an existing one may be
		return name
	}
	return filepath.Join(s.Dir, name)
}

// files returns what to write, lockstep.yaml last.
func (s *setup) files() []setupFile {
	secret := func() []byte {
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails
		return b
	}
	hook, credential := s.hook(), filepath.Join(cmp.Or(s.former().Credentials, "credentials"), s.App)
	return slices.DeleteFunc([]setupFile{
		{"api-token", hex.EncodeToString(secret()) + "\n", s.before == nil},
		{filepath.Join(hook, "forge"), s.Forge + "\n", s.Forge != none},
		{filepath.Join(hook, "secret"), hex.EncodeToString(secret()) + "\n", s.Forge != none},
		{filepath.Join(credential, "signingSecret"), "whsec_" + base64.StdEncoding.EncodeToString(secret()) + "\n",
			s.NotifyURL != ""},
		{filepath.Join(credential, "urls"), s.NotifyURL + "\n", s.NotifyURL != ""},
		{"compose.yaml", "", s.Service == "compose"},
		{"lockstep.service", "", s.Service == "systemd"},
		{config.DefaultFile, "", s.before == nil},
	}, func(f setupFile) bool { return !f.wanted })
}

// existing is what init reads of the settings of one that exists.
type existing struct {
	Listen      string
	Hooks       string
	Credentials string
	NotifyHosts hostList `yaml:"notify-hosts"`
}

// hostList is a list, or its text with commas.
type hostList []string

func (l *hostList) UnmarshalYAML(node *yaml.Node) error {
	list := []string{node.Value}
	if node.Kind != yaml.ScalarNode {
		list = nil
		if err := node.Decode(&list); err != nil {
			return err
		}
	}
	*l = strings.FieldsFunc(strings.Join(list, ","), func(r rune) bool { return r == ',' || r == ' ' })
	return nil
}

// readDeployment returns the deployment in a folder, or nil if there is none.
func readDeployment(dir string) (*existing, error) {
	path := filepath.Join(dir, config.DefaultFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	found := &existing{}
	if err == nil {
		err = yaml.Unmarshal(text, found)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return found, nil
}

// printLeft prints what is to be added to the settings of a deployment that exists.
func (s *setup) printLeft(w io.Writer, left []string) {
	if len(left) > 0 {
		fmt.Fprintf(w, "left as they are: %s\n", strings.Join(left, ", "))
	}
	var lines []string
	if s.Forge != none && s.before.Hooks == "" {
		lines = append(lines, "hooks: hooks")
	}
	if s.NotifyURL != "" && s.before.Credentials == "" {
		lines = append(lines, "credentials: credentials")
	}
	if s.PrivateHost != "" && !slices.Contains(s.before.NotifyHosts, s.PrivateHost) {
		lines = append(lines, fmt.Sprintf("notify-hosts: [%s]", strings.Join(append(s.before.NotifyHosts, s.PrivateHost), ", ")))
	}
	if len(lines) > 0 {
		fmt.Fprintf(w, "\nTo set in %s, then restart:\n  %s\n", config.DefaultFile, strings.Join(lines, "\n  "))
	}
}

// write writes the files. If one of them exists, it writes nothing and returns an error, or leaves that one if it adds to a
// deployment.
func (s *setup) write(w io.Writer) error {
	var names, left []string
	files := s.files()
	for i, f := range slices.Backward(files) {
		path := s.path(f.name)
		_, err := os.Lstat(path)
		if err == nil && s.before != nil {
			left, files = append(left, f.name), slices.Delete(files, i, i+1)
			continue
		}
		if err == nil {
			return fmt.Errorf("%s exists; nothing was written: edit it, remove it, or choose another folder with --dir", path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, folder := range []string{"repos", "spool"} { // else Docker creates them, as root
		if s.before != nil {
			break // root and spool may be elsewhere
		}
		if err := os.MkdirAll(filepath.Join(s.Dir, folder), 0o755); err != nil {
			return err
		}
	}
	for _, f := range files {
		perm := os.FileMode(0o600) // as secrets are
		if f.content == "" {
			perm = 0o644
			var text strings.Builder
			if err := initTemplates.ExecuteTemplate(&text, f.name, s); err != nil {
				return err
			}
			f.content = text.String()
		}
		path := s.path(f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.content), perm); err != nil {
			return err
		}
		names = append(names, f.name)
	}
	fmt.Fprintf(w, "written in %s: %s\n", s.Dir, cmp.Or(strings.Join(names, ", "), "nothing"))
	if s.before != nil {
		s.printLeft(w, left)
	}
	return nil
}
