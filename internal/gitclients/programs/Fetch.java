import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.eclipse.jgit.api.Git;
import org.eclipse.jgit.lib.ObjectId;
import org.eclipse.jgit.transport.RefSpec;

public class Fetch {
    public static void main(String[] args) throws Exception {
        System.out.println("JGit " + Git.class.getPackage().getImplementationVersion());
        BufferedReader urls = new BufferedReader(new InputStreamReader(System.in));
        Git git = null;
        for (String url; (url = urls.readLine()) != null;) {
            try {
                if (git == null) {
                    git = Git.cloneRepository().setURI(url).setDirectory(new File(args[0])).setBare(true).call();
                } else {
                    git.fetch().setRemote(url).setRefSpecs(new RefSpec("+refs/heads/*:refs/heads/*")).call();
                }
                ObjectId main = git.getRepository().resolve("refs/heads/main");
                System.out.println("ok " + (main == null ? "" : main.name()));
            } catch (Exception e) {
                System.out.println("error " + e.toString().replace('\n', ' '));
            }
        }
    }
}
