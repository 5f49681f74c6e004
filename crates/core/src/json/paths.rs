//! A table of paths, compiled to a trie: a scanner steps down it as it enters a document.

/// The paths worth reporting, compiled to a trie, each with the signal it raises.
///
/// A path is member names joined by `.`; `[]` after a name means every element of that array:
/// `choices[].delta.content`.
#[derive(Debug)]
pub struct Paths<S> {
    nodes: Vec<Node<S>>,
}

#[derive(Debug)]
struct Node<S> {
    members: Vec<(&'static str, NodeId)>,
    elements: Option<NodeId>,
    signal: Option<S>,
}

/// A place in the trie; the root is 0.
pub(super) type NodeId = u8;

// === impl Paths ===

impl<S: Copy> Paths<S> {
    /// Compiles tables, as if they were one.
    pub fn new(tables: &[&[(&'static str, S)]]) -> Self {
        let mut paths = Self { nodes: vec![Node::empty()] };
        for &(path, signal) in tables.iter().copied().flatten() {
            let mut at = 0;
            for segment in path.split('.') {
                let name = segment.trim_end_matches("[]");
                at = paths.child(at, Some(name));
                for _ in 0..(segment.len() - name.len()) / 2 {
                    at = paths.child(at, None);
                }
            }
            paths.nodes[usize::from(at)].signal = Some(signal);
        }
        paths
    }

    fn child(&mut self, parent: NodeId, name: Option<&'static str>) -> NodeId {
        let known = match name {
            Some(name) => self.member(parent, name.as_bytes()),
            None => self.nodes[usize::from(parent)].elements,
        };
        known.unwrap_or_else(|| {
            let id = self.nodes.len() as NodeId;
            debug_assert!(self.nodes.len() <= usize::from(NodeId::MAX), "table too large");
            self.nodes.push(Node::empty());
            match name {
                Some(name) => self.nodes[usize::from(parent)].members.push((name, id)),
                None => self.nodes[usize::from(parent)].elements = Some(id),
            }
            id
        })
    }

    pub(super) fn element(&self, array: NodeId) -> Option<NodeId> {
        self.nodes[usize::from(array)].elements
    }

    pub(super) fn member(&self, object: NodeId, name: &[u8]) -> Option<NodeId> {
        let members = &self.nodes[usize::from(object)].members;
        members.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, id)| id)
    }

    pub(super) fn signal(&self, node: Option<NodeId>) -> Option<S> {
        self.nodes[usize::from(node?)].signal
    }

    pub(super) fn is_entered(&self, node: NodeId, is_object: bool) -> bool {
        let node = &self.nodes[usize::from(node)];
        if is_object { !node.members.is_empty() } else { node.elements.is_some() }
    }
}

impl<S> Node<S> {
    fn empty() -> Self {
        Self { members: Vec::new(), elements: None, signal: None }
    }
}
