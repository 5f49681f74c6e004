//! A table of the paths of reported values, compiled to a trie. The scanner follows the trie from node to node
//! as it enters the containers of a document.

/// The paths of the values to report, compiled to a trie. Each path has a signal, which identifies the path in
/// reports.
///
/// A path consists of member names joined by `.`, such as `choices[].delta.content`. `[]` after a name means
/// every element of that array. The name `*` means every member that no other path names.
#[derive(Debug)]
pub struct PathTable<S> {
    nodes: Vec<TrieNode<S>>,
}

#[derive(Debug)]
struct TrieNode<S> {
    /// Nodes of the members of an object, by name.
    members: Vec<(&'static str, TrieNodeId)>,
    /// Node of the members of an object that have no node of their own. `None`: these members are
    /// skipped.
    other_members: Option<TrieNodeId>,
    /// Node of all elements of an array. `None`: no path leads to the elements.
    elements: Option<TrieNodeId>,
    /// Signal of the path that ends here. `None`: no path ends here.
    signal: Option<S>,
}

/// Index of a trie node; the root is 0.
pub(super) type TrieNodeId = u8;

/// The name in a path that means the members that no other path names.
const OTHER_MEMBERS: &str = "*";

impl<S: Copy> PathTable<S> {
    /// Compiles the paths of several tables into one trie. Each table has the path of an object, and the paths
    /// of its members relative to that object, each with its signal. The path of the document itself is empty.
    pub fn new(tables: &[(&'static str, &[(&'static str, S)])]) -> Self {
        let mut paths = Self {
            nodes: vec![TrieNode::empty()],
        };
        for &(object, rows) in tables {
            let object = if object.is_empty() {
                0
            } else {
                paths.node_or_insert(0, object)
            };
            for &(path, signal) in rows {
                let node = paths.node_or_insert(object, path);
                paths.nodes[usize::from(node)].signal = Some(signal);
            }
        }
        paths
    }

    /// Adds paths whose values are skipped, even if a path with `*` would match them.
    #[must_use]
    pub fn with_skipped(mut self, paths: &[&'static str]) -> Self {
        for path in paths {
            self.node_or_insert(0, path);
        }
        self
    }

    fn node_or_insert(&mut self, object: TrieNodeId, path: &'static str) -> TrieNodeId {
        let mut node = object;
        for segment in path.split('.') {
            let name = segment.trim_end_matches("[]");
            node = self.child_or_insert(node, Some(name));
            for _ in 0..(segment.len() - name.len()) / 2 {
                node = self.child_or_insert(node, None);
            }
        }
        node
    }

    /// The child of a node. A missing child is added. `name`: the name of the object member. `None`: the child
    /// stands for the elements of an array.
    fn child_or_insert(&mut self, parent: TrieNodeId, name: Option<&'static str>) -> TrieNodeId {
        let existing = match name {
            Some(OTHER_MEMBERS) => self.other_members(parent),
            Some(name) => self.member(parent, name.as_bytes()),
            None => self.nodes[usize::from(parent)].elements,
        };
        existing.unwrap_or_else(|| {
            let id = self.nodes.len() as TrieNodeId;
            debug_assert!(
                self.nodes.len() <= usize::from(TrieNodeId::MAX),
                "table too large"
            );
            self.nodes.push(TrieNode::empty());
            let parent = &mut self.nodes[usize::from(parent)];
            match name {
                Some(OTHER_MEMBERS) => parent.other_members = Some(id),
                Some(name) => parent.members.push((name, id)),
                None => parent.elements = Some(id),
            }
            id
        })
    }

    pub(super) fn element(&self, array: TrieNodeId) -> Option<TrieNodeId> {
        self.nodes[usize::from(array)].elements
    }

    pub(super) fn member(&self, object: TrieNodeId, name: &[u8]) -> Option<TrieNodeId> {
        let members = &self.nodes[usize::from(object)].members;
        members
            .iter()
            .find(|(candidate, _)| candidate.as_bytes() == name)
            .map(|&(_, id)| id)
    }

    pub(super) fn other_members(&self, object: TrieNodeId) -> Option<TrieNodeId> {
        self.nodes[usize::from(object)].other_members
    }

    pub(super) fn signal(&self, node: Option<TrieNodeId>) -> Option<S> {
        self.nodes[usize::from(node?)].signal
    }

    pub(super) fn has_children(&self, node: TrieNodeId, is_object: bool) -> bool {
        let node = &self.nodes[usize::from(node)];
        if is_object {
            !node.members.is_empty() || node.other_members.is_some()
        } else {
            node.elements.is_some()
        }
    }
}

impl<S> TrieNode<S> {
    fn empty() -> Self {
        Self {
            members: Vec::new(),
            other_members: None,
            elements: None,
            signal: None,
        }
    }
}
